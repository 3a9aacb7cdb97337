"""Steps whose rows find no room on the disk, or whose clock fails."""

import json
from types import SimpleNamespace

import pytest

from memlab.meters import own_errors
from memlab.meters.clock import mark
from memlab.meters.memory import Reading
from memlab.meters.options import MeterOptions
from memlab.meters.phases import LOAD
from memlab.meters.session import Session
from memlab.meters.steps import Rows, Step

pytestmark = pytest.mark.cpu


def test_rows_wait_for_room_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(own_errors, "noted", [])
    rows = Rows()
    with open("/dev/full", "wb", buffering=0) as rows._file:  # not by its path: open() removes what has the name
        for number in (1, 2):
            rows.add(Step(number, mark(False)), mark(False), skipped=False)
        assert len(rows.seconds) == 2 and "No space left" in own_errors.noted[0]
    rows.open(tmp_path / "rank0.steps.jsonl")
    lines = (tmp_path / "rank0.steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_a_clock_that_fails_does_not_end_the_script(monkeypatch):
    class BrokenMemory(SimpleNamespace):
        @property
        def device(self) -> int:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(own_errors, "noted", [])
    session = Session(MeterOptions("folder", steps=3), BrokenMemory(turn=lambda: None))
    session.step_ends()
    assert own_errors.noted == ["Session.step_ends: RuntimeError: CUDA error: device-side assert triggered"]


def test_the_end_that_steps_asks_for_reaches_the_script(monkeypatch):
    session = Session(MeterOptions("folder", steps=3), SimpleNamespace(turn=lambda: None, device=None))
    session.steps_done = 3
    with pytest.raises(SystemExit):
        session.step_ends()


def test_nothing_marks_the_device_before_the_first_step(monkeypatch):
    """A forked process forgets what its parent measured, and an event of CUDA ends a process that did not make it."""

    class Memory(SimpleNamespace):
        @property
        def device(self) -> int:
            raise AssertionError("a mark was made")

    monkeypatch.setattr(own_errors, "noted", [])
    reading = Reading(host_rss_bytes=0, host_peak_bytes=0)
    session = Session(MeterOptions("folder"), Memory(turn=lambda: reading))
    with session.running(LOAD):
        pass
    assert own_errors.noted == []
