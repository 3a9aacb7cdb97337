"""Jobs on a machine without GPUs, and a short script in place of deepspeed and its ranks; the rest is real."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from memlab.launch import job_launch, process
from memlab.system.machine import Machine

CPU = Machine()


@pytest.fixture
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "POLL_S", 0.02)
    monkeypatch.setattr(process, "STACKS_S", 0.0)
    monkeypatch.setattr(job_launch, "unbuilt_ops", lambda plan: [])  # whatever the machine has built
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


BEGIN = """
import json, os, pathlib, sys, time
rank, acts, notes = json.loads(sys.argv[1])
folders = sys.argv[2:]
def note(word):
    with open(notes, "a") as file:
        file.write(word + "\\n")
def write(folder, number, **changes):
    path = pathlib.Path(folder, f"rank{number}.json")
    path.with_suffix(".new").write_text(json.dumps({**rank, "rank": number, **changes}))
    path.with_suffix(".new").rename(path)
def both(folder, **changes):
    write(folder, 0, **changes)
    write(folder, 1, **changes)
note("launch")
"""

PLAY = """
for folder in folders:
    config = json.loads(pathlib.Path(folder, "plan.json").read_text())["config"]
    note(pathlib.Path(folder).name)
    act = acts.get(f"{config['zero_stage']['stage']}/{config['batch']['micro']}x{config['seq_len']['tokens']}")
    if act == "oom":
        write(folder, 1, status="gpu_oom", reason="no memory", oom={"phase": "backward", "step": 0}, timing={})
        raise SystemExit(1)
    if act == "host_oom":
        write(folder, 1, status="host_oom", reason="no memory", timing={})
        raise SystemExit(1)
    if act == "hang":
        write(folder, 0)
        time.sleep(60)
    if act == "die":
        write(folder, 0)
        os.kill(os.getpid(), 9)
    if act == "fail":
        write(folder, 0, status="failed", reason="odd", timing={})
        raise SystemExit(1)
    both(folder)
"""


class Played:
    """What the stand-in did: how many launches there were, and which folders were played how often, in order."""

    def __init__(self, notes: Path):
        self._notes = notes

    @property
    def _words(self) -> list[str]:
        return self._notes.read_text().split() if self._notes.exists() else []

    @property
    def launches(self) -> int:
        return self._words.count("launch")

    @property
    def names(self) -> list[str]:
        return [word for word in self._words if word != "launch"]

    @property
    def times(self) -> Counter:
        return Counter(self.names)


@pytest.fixture
def deepspeed(monkeypatch, tmp_path, rank) -> Callable[..., Played]:
    """``deepspeed(code)`` or ``deepspeed(acts={"2/1x4": "oom"})``: what is started in place of DeepSpeed's launcher.

    Without code it plays both ranks of every folder, but for the acts, by "<stage>/<micro batch>x<tokens>".
    """

    def replace(code: str = PLAY, acts: dict[str, str] | None = None) -> Played:
        notes = tmp_path / "notes"
        values = json.dumps([rank(0), acts or {}, str(notes)])

        def command(plan, folders, gpu_ids, port):
            return [sys.executable, "-S", "-c", BEGIN + code, values, *map(str, folders)]

        monkeypatch.setattr(job_launch, "command", command)
        return Played(notes)

    return replace
