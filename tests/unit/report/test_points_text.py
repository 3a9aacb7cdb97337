"""The table of a sweep: what varies, free and reserved memory, step time, price."""

import io
import re
from dataclasses import replace

import pytest
from folders import MIB, make_config, make_record, write
from rich.console import Console

from memlab.analyse.collect import collect
from memlab.core.config import Hardware, Offload, Training
from memlab.report.points_text import show_points
from memlab.report.text import console

CHOICES = {"zero_stage": "zero2", "offload": "none"}


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """``shown(records, width)``: the title of the table, and its rows as column -> cell."""

    def show(*records, width: int = 160, **options) -> tuple[str, list[dict[str, str]]]:
        for number, record in enumerate(records):
            write(tmp_path / str(number), record)
        monkeypatch.setenv("COLUMNS", str(width))
        out = console(io.StringIO())
        show_points(collect([tmp_path]).runs, out, **options)
        lines = out.file.getvalue().splitlines()
        head = next(place for place, line in enumerate(lines) if "step" in line.split())
        title = " ".join(line.strip() for line in lines[:head])
        columns = re.split(r"\s{2,}", lines[head].strip())
        rows = [re.split(r"\s{2,}", line.strip()) for line in lines[head + 1 : head + 1 + len(records)]]
        return title, [dict(zip(columns, row, strict=False)) for row in rows]

    return show


def bound(tokens: int, **parts):
    """Return a prediction whose step time is only a lower bound."""
    record = make_record(make_config(tokens, mode="predict", **parts), CHOICES)
    record.source, record.steps = "predicted", {"basis": "lower bound", "basis_reason": "no calibration for A100"}
    record.summary["step_seconds_max"] = None
    return record


def test_what_varies_is_first_then_memory_step_and_price(shown):
    offloaded = make_config(offload=Offload(optimizer="cpu"))
    title, (plain, other) = shown(
        make_record(allocated=1000 * MIB), make_record(offloaded, {**CHOICES, "offload": "optimizer"}, seconds=2.0)
    )
    assert title == "2 points; memory is the fullest rank's; source measured; batch 1; tokens 512"
    assert list(plain)[:5] == ["offload", "free GiB", "reserved GiB", "step", "$ per million tokens"]
    assert (plain["free GiB"], plain["reserved GiB"], plain["step"]) == ("79.00", "1.00", "0.500 s")
    assert (other["offload"], other["step"]) == ("optimizer", "2.00 s")
    # 2 GPUs, 1 x 512 tokens each, 2 s a step, at 3.6 dollars an hour: not the cost of the launch.
    assert other["$ per million tokens"] == "$1.953"


def test_a_value_that_varies_within_one_option_is_a_column(shown):
    machines = [replace(make_config().hardware, gpus=gpus) for gpus in (2, 4)]
    _, rows = shown(*(make_record(make_config(hardware=each), CHOICES) for each in machines))
    assert [row["hardware.gpus"] for row in rows] == ["2", "4"]


def test_a_key_of_ones_own_with_the_name_of_a_column_is_named_apart(shown):
    own = [{"note": text, "step": number, "tokens": 7 + number} for number, text in enumerate(("first", "second"))]
    _, rows = shown(*(make_record(make_config(own=each), CHOICES) for each in own))
    assert [(row["own.note"], row["own.step"], row["own.tokens"]) for row in rows] == [
        ("first", "0", "7"),
        ("second", "1", "8"),
    ]
    assert [row["step"] for row in rows] == ["0.500 s", "0.500 s"]


def test_a_bound_is_written_as_one_and_a_missing_price_is_a_dash(shown):
    free = Hardware(gpu="A100", gpus=2, memory_gib=80.0)
    _, (row, measured) = shown(bound(512), make_record(make_config(1024, hardware=free), CHOICES))
    assert (row["step"], row["$ per million tokens"]) == ("at least 0.500 s", "at least $0.4883")
    assert row["tokens/s"] == "at most 2,048"
    assert (measured["step"], measured["$ per million tokens"]) == ("0.500 s", "-")


def test_a_record_without_a_price_has_the_list_price_of_its_gpu_which_the_title_names(shown):
    title, (own, old) = shown(
        make_record(make_config(hardware=Hardware(gpu="NVIDIA H200", gpus=2, memory_gib=140.0)), CHOICES),
        make_record(make_config(1024), CHOICES),
    )
    # 2 GPUs at 3.50 dollars an hour each, 2,048 tokens a second.
    assert (old["$ per million tokens"], own["$ per million tokens"]) == ("$0.9494", "$0.2441")
    assert "; list price of NVIDIA H200 (Nebius, by 2026-11-21)" in title


def test_a_run_that_does_not_fit_has_its_reason_in_place_of_the_step(shown):
    failed = make_record(make_config(4096), CHOICES, "gpu_oom")
    failed.reason = "rank 0 in first_forward, step 0: OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
    edge = make_record(make_config(2048), CHOICES)
    edge.summary["verdict"] = "edge"
    _, (fits, at_edge, too_large) = shown(make_record(), edge, failed)
    assert (fits["tokens"], at_edge["tokens"], too_large["tokens"]) == ("512", "2048", "4096")
    assert at_edge["step"] == "0.500 s" and at_edge["note"] == "at the edge"
    assert list(too_large.values())[1:5] == ["-", "-", "out of memory", "-"]
    assert list(too_large.values())[-1] == "in first forward"


def test_a_run_that_does_not_last_leaves_nothing_free(shown):
    grows = make_record(make_config(2048), CHOICES)
    grows.summary["verdict"] = "does_not_last"
    _, (lasts, does_not) = shown(make_record(), grows)
    assert (lasts["free GiB"], does_not["free GiB"]) == ("79.88", "-") and does_not["note"] == "does not last"


@pytest.mark.parametrize(
    ("status", "reason", "note"),
    [
        (
            "failed",
            "rank 1 at /home/me/project/train.py:31: RuntimeError: mat1 and mat2 shapes differ (4x8 and 9)",
            "RuntimeError, train.py:31",
        ),
        (
            "failed",
            "the command ended with exit code 1; its last line: torch.distributed.DistBackendError: NCCL error",
            "DistBackendError",
        ),
        ("timeout", "the command had not ended after 600 s; rank 0 was last seen in step 3, train.py:31", None),
        ("failed", "a word " * 30, ("a word " * 8)[:-1] + " ..."),
    ],
)
def test_the_reason_of_a_failure_is_short(shown, status, reason, note):
    failed = make_record(make_config(4096), CHOICES, status)
    failed.reason = reason
    _, (_, row) = shown(make_record(), failed)
    assert list(row.values())[-1] == (note or "the command had not ended after 600 s")


def test_the_steps_that_were_seen_of_commands_are_no_choice(shown):
    records = [make_record(make_config(tokens)) for tokens in (512, 1024)]
    for steps, record in enumerate(records, start=40):
        record.config.training = Training("command", f"train.py --steps {steps}")
        record.config.measure.steps = steps
    assert not any("steps" in name for name in shown(*records)[1][0])


def test_a_point_that_a_command_did_not_use_is_a_note(shown):
    record = make_record(make_config(513))
    record.command = {"words": [], "disagreements": [{"key": "seq_len.tokens", "composed": 512, "found": 513}]}
    _, (row,) = shown(record)
    assert (row["tokens"], list(row.values())[-1]) == ("513", "composed: seq_len.tokens=512")


def test_a_narrow_terminal_keeps_the_speed_and_the_error_of_the_step_stands_once(tmp_path):
    for tokens in (512, 1024):
        record = make_record(make_config(tokens, mode="predict"), CHOICES)
        record.source, record.steps = "predicted", {"error": {"median": 0.1, "p90": 0.23}}
        write(tmp_path, record)
    out = Console(file=io.StringIO(), width=66)
    show_points(collect([tmp_path]).runs, out)
    shown = out.file.getvalue()
    assert "The terminal is too narrow for: allocated GiB.\n" in shown
    assert re.search(r"0\.500 s ± 23 % +\$0\.4883 +2,048\n", shown)


def test_estimates_of_other_tools_are_shown_on_request(shown):
    assert not any("estimate" in name for name in shown(make_record())[1][0])
    assert shown(make_record(), estimates=True)[1][0]["accelerate's estimate"] == "0.01"


def test_options_that_take_half_the_terminal_are_one_column_of_short_names(shown):
    """The names leave out what most configurations have; the title says what that is."""
    records = [make_record(make_config(stage=stage)) for stage in (1, 2, 3)]
    records.append(make_record(make_config(offload=Offload(optimizer="cpu")), {**CHOICES, "offload": "optimizer"}))
    records[0].config.hardware.memory_gib = 40.0
    title, rows = shown(*records, width=84)
    assert "unless named: offload=none" in title
    assert "zero2 offload=optimizer" in [row["configuration"] for row in rows]


def test_points_whose_batches_are_not_known_have_a_table(shown):
    """Scripts of people's own may have batches that memlab does not find out."""
    record = make_record()
    record.unknown_config = ["batch.micro", "seq_len.tokens"]
    assert shown(record)[1][0]["reserved GiB"] == "0.12"
