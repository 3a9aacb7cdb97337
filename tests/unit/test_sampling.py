"""The sample of the long tests: what is drawn, what is never left out, and what is said at the end of a run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import draw

TESTS = Path(__file__).parents[1]

FILES = {f"tests/{file}.py::test_{number}": 10.0 for file in "abc" for number in range(6)}


def test_a_seed_draws_the_same_again_and_another_one_others():
    assert draw(FILES, "one", 50) == draw(dict(reversed(FILES.items())), "one", 50)
    assert len({frozenset(draw(FILES, str(seed), 50)) for seed in range(20)}) > 10


@pytest.mark.parametrize("budget", [0, 9.9, 30, 55, 1000])
def test_a_sample_takes_no_longer_than_it_may(budget):
    drawn = draw(FILES, "one", budget)
    assert len(drawn) == min(budget // 10, len(FILES))


def test_every_file_has_its_turn():
    for seed in range(20):
        assert {unit.partition("::")[0] for unit in draw(FILES, str(seed), 30)} == {f"tests/{f}.py" for f in "abc"}


def test_what_is_too_long_leaves_room_for_others():
    assert draw({"a::long": 60.0, "b::short": 10.0}, "one", 50) == {"b::short"}


CONFTEST = """
from sampling import Sampling

def pytest_configure(config):
    config.addinivalue_line("markers", "long(seconds): of the sample")
    config.pluginmanager.register(Sampling("one", 25))
"""

OF_ONE_MODULE = """
import pytest
pytestmark = pytest.mark.long(30)

def test_first(): ...
def test_second(): ...
"""

SINGLE = """
import pytest

@pytest.mark.long(20)
@pytest.mark.parametrize("number", [1, 2])
def test_long(number): ...
def test_short(): ...
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_what_is_left_out_is_counted_and_named(tmp_path, workers):
    for name, text in {"conftest": CONFTEST, "test_module": OF_ONE_MODULE, "test_single": SINGLE}.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", *workers]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    *_, first, second, count, summary = filter(None, done.stdout.splitlines())
    assert first == "test_module.py: 2 tests" and second.startswith("test_single.py::test_long[")
    assert count == "3 long tests left out by --sample-seed=one; make test-all runs every test"
    assert "2 passed" in summary
