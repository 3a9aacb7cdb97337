"""What CI runs of the tests, and what runs at the same time."""

import fcntl
import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import launches
import pytest

ROOT = Path(__file__).parents[2]


def test_ci_runs_every_test_once():
    commands = dict(re.findall(r'^(test[a-z-]*):.*\n\t.* -m "(.*)"$', (ROOT / "Makefile").read_text(), re.MULTILINE))
    in_ci = re.findall(r"^make (test[a-z-]*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    for long, core in product([False, True], repeat=2):
        assert sum(eval(commands[name], {"long": long, "core": core}) for name in in_ci) == 1


def item(*marks: str, fixtures: tuple[str, ...] = ()) -> SimpleNamespace:
    """Stand in for a pytest item."""
    return SimpleNamespace(fixturenames=fixtures, get_closest_marker=lambda name: name in marks)


def is_free(kind: int) -> bool:
    with launches.FILE.open("w") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize(
    ("test", "others_may_launch", "two_hosts_may_launch"),
    [
        (item("cluster", fixtures=("hosts_by",)), False, False),
        (item("cluster"), True, False),
        (item("cpu"), True, False),
        (item("shadow"), True, True),
    ],
)
def test_only_launches_on_two_hosts_are_alone(test, others_may_launch, two_hosts_may_launch, tmp_path, monkeypatch):
    monkeypatch.setattr(launches, "FILE", tmp_path / "lock")
    with launches.lock(test):
        assert is_free(fcntl.LOCK_SH) == others_may_launch
        assert is_free(fcntl.LOCK_EX) == two_hosts_may_launch
    assert is_free(fcntl.LOCK_EX)
