"""Remedies of ``memlab explain``: changes are predicted, and the blocks that they remove are gone."""

import io
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from memlab.analyse.explain.remedies import remedies
from memlab.cli.compose import compose_config
from memlab.cli.single_changes import changes_of_record
from memlab.core.plan import make_plan
from memlab.planner.changed_runs import ChangedCommands, ChangedPlans
from memlab.planner.user_command import predict_command
from memlab.prediction.prediction import predict_one
from memlab.report.remedies_text import show_remedies
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job
from memlab.system.deadman import guarded

pytestmark = [pytest.mark.shadow, pytest.mark.long(30)]

DDP = Path(__file__).parents[1] / "scripts" / "ddp.py"


def printed(found) -> str:
    out = io.StringIO()
    show_remedies(found, Console(file=out, width=200))
    return " ".join(out.getvalue().split())


def change(remedy, kind: str) -> int:
    return next(row.change for row in remedy.blocks.parts if row.name == kind)


def held(found, kind: str) -> int:
    return sum(holding.nbytes for holding in found.base.rank.peak.holdings if holding.site.kind == kind)


def test_half_the_batch_of_a_plan_halves_the_logits(tmp_path):
    """The tiny model's vocabulary makes its logits the largest holder."""
    words = ["mode=predict", "model=tiny", "hardware=h100_x1", "batch.micro=256"]
    record = predict_one(Job(make_plan(*compose_config(words)), RunFolder(tmp_path)))
    found = remedies(record, ChangedPlans(*changes_of_record(record), lambda *progress: None), most=2)
    assert found.base.reserved == record.ranks[0]["peak_reserved_bytes"]  # the run as it is, predicted as before
    halved = next(remedy for remedy in found.tried if remedy.change == "batch.micro=128")
    assert 2 * change(halved, "logits and loss") == pytest.approx(-held(found, "logits and loss"), rel=0.01)
    assert found.base.reserved - halved.needs.reserved > 2**30
    assert halved.needs.step.seconds < found.base.step.seconds
    assert "checkpointing=full" in [*(remedy.change for remedy in found.tried), *found.not_tried]
    assert "Price: more steps, or batch.accumulation." in printed(found)


def test_a_command_runs_again_with_half_its_batch(tmp_path, monkeypatch):
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    size = ("--hidden", "256", "--layers", "2", "--heads", "4", "--vocab", "32000", "--length", "256")
    words = [sys.executable, str(DDP), *size, "--batch", "64", "--accumulate", "1"]
    config, _ = compose_config(["mode=predict", "hardware=t4_x1"])
    folder = RunFolder(tmp_path / "run")
    record = predict_command(words, config.hardware, folder, 1)
    with guarded(os.environ) as environ:
        found = remedies(record, ChangedCommands(folder, record, environ, lambda *progress: None), most=1)
    assert found.base.reserved == record.ranks[0]["peak_reserved_bytes"]  # from the traces in the folder
    (halved,) = found.tried
    assert halved.change == "--batch 32 --accumulate 2"
    logits = 64 * 256 * 32000 * 4  # bytes in 32 bits: batch, length, vocabulary
    assert halved.blocks.change < -logits / 2 and found.base.reserved - halved.needs.reserved > logits / 2
    assert "--batch 32 --accumulate 2: " in printed(found)
