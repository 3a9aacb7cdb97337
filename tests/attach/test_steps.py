"""Rows of steps on a full disk."""

import json
from pathlib import Path

import pytest

from memlab.attach import own_errors
from memlab.attach.clock import mark
from memlab.attach.steps import Rows, Step

pytestmark = pytest.mark.cpu


def test_rows_wait_for_room_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(own_errors, "noted", [])
    rows = Rows()
    rows.open(Path("/dev/full"))
    for number in (1, 2):
        rows.add(Step(number, mark(False)), mark(False), skipped=False)
    assert len(rows.seconds) == 2 and "No space left" in own_errors.noted[0]
    rows.open(tmp_path / "rank0.steps.jsonl")
    lines = (tmp_path / "rank0.steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
