"""What to change first, by arithmetic on a breakdown whose sums are known."""

import io

import pytest
from rich.console import Console

from memlab.core.sizes import GIB
from memlab.planner.changes import likely_remedies
from memlab.report.details_text import show_answer
from memlab.runs.folder import RunFolder

KINDS = {
    "weights": 16 * GIB,
    "gradients": 8 * GIB,
    "fp32 master weights": 4 * GIB,
    "optimizer states": 12 * GIB,
    "activations": 20 * GIB,
    "activation gradients": 2 * GIB,
    "logits and loss": 6 * GIB,
    "allocator slack": GIB,
}


@pytest.fixture
def predicted(record, rank, config):
    def build(changes, kinds=KINDS):
        ranks = [
            rank(
                number,
                peak_reserved_bytes=size,
                peak_reserved_range_bytes=[size, size],
                breakdown={"phases": {"backward": of}, "peak_phase": "backward"},
            )
            for number, size, of in ((0, 1, {"weights": 1}), (1, 99, kinds), (2, 1, {}), (3, 1, {}))
        ]
        summary = {"verdict": "does_not_fit"}
        return record(source="predicted", ranks=ranks, config=config({"hardware.gpus": 4, **changes}), summary=summary)

    return build


def test_stage_1(predicted):
    found = likely_remedies(predicted({"zero_stage.stage": 1, "batch.micro": 3}))
    assert {change.told: nbytes / GIB for change, nbytes in found} == {
        "checkpointing=full": 20,
        "batch.micro=1": pytest.approx(28 * 2 / 3),
        "offload=optimizer": 16,
        "zero_stage=zero2": 6,  # three of four shares of 8
        "allocator=expandable": 1,
    }
    assert [nbytes for _, nbytes in found] == sorted((nbytes for _, nbytes in found), reverse=True)


def test_stage_3_with_its_optimizer_offloaded(predicted):
    changes = {"zero_stage.stage": 3, "offload.optimizer": "cpu", "checkpointing.enabled": True}
    found = likely_remedies(predicted({**changes, "allocator.conf": "expandable_segments:True"}))
    assert {change.told: nbytes / GIB for change, nbytes in found} == {"offload=all": 16}


def test_what_is_not_there_cannot_be_taken_off(predicted):
    found = likely_remedies(predicted({"zero_stage.stage": 2}, kinds={"activations": 7}))
    assert [(change.told, nbytes) for change, nbytes in found] == [("checkpointing=full", 7)]


def test_a_record_without_a_breakdown(record):
    assert likely_remedies(record(source="predicted")) == []


def test_show_names_them(predicted, tmp_path):
    out = io.StringIO()
    show_answer(predicted({"zero_stage.stage": 2}), RunFolder(tmp_path), Console(file=out, width=200), everything=True)
    assert "checkpointing=full: at most 20.0 GiB (activations)" in out.getvalue()
    assert "memlab plan --changes model=tiny" in out.getvalue()
