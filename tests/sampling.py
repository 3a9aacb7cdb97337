"""A sample of the long tests: the short ones always run, and of the long ones as many as fit into a given time.

A test is long if it is marked ``long(seconds)``: its CPU seconds with all that it starts, or the seconds that it waits
where these are more. A mark on a module (``pytestmark``) is for all its tests together: they share fixtures and are
drawn as one. The seed decides what is drawn, so a run can be repeated, and another seed draws other tests.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import chain, zip_longest

import pytest

SAMPLE_S = 900.0
"""Seconds of long tests in a sample: half of that on the clock of a machine with two cores."""

UNMARKED_S = 30.0
"""A test of more seconds on the clock is named at the end unless it is marked."""


def unit_of(item: pytest.Item) -> tuple[str, float] | None:
    """What is drawn as one: the test, or the module that carries the mark, and its seconds. ``None``: a short test."""
    for node, mark in item.iter_markers_with_node("long"):
        (seconds,) = mark.args
        return node.nodeid, seconds
    return None


def draw(seconds: Mapping[str, float], seed: str, budget: float) -> set[str]:
    """Units (node id -> seconds) in a random order for as long as ``budget`` lasts.

    Every file has its turn before any has a second one, so that each kind of test is in almost every sample.
    """
    chance = random.Random(seed)
    files: dict[str, list[str]] = defaultdict(list)
    for unit in chance.sample(sorted(seconds), len(seconds)):
        files[unit.partition("::")[0]].append(unit)
    turns = chain.from_iterable(zip_longest(*files.values()))
    drawn: set[str] = set()
    for unit in filter(None, turns):
        if seconds[unit] <= budget:
            budget -= seconds[unit]
            drawn.add(unit)
    return drawn


class Sampling:
    """The plugin. With pytest-xdist every worker draws the same tests and tells the controller which it left out."""

    def __init__(self, seed: str, budget: float):
        self.seed, self.budget = seed, budget
        self.left_out: dict[str, int] = {}  # unit -> tests
        self.unmarked_seconds: Counter[str] = Counter()

    def pytest_report_header(self) -> str:
        return f"long tests: a sample of {self.budget:g} s, --sample-seed={self.seed}"

    @pytest.hookimpl(trylast=True)  # after -k and -m
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        units = {item: unit_of(item) for item in items}
        drawn = draw(dict(filter(None, units.values())), self.seed, self.budget)
        left_out = {item: unit[0] for item, unit in units.items() if unit and unit[0] not in drawn}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))
        self.left_out = dict(Counter(left_out.values()))
        if hasattr(config, "workeroutput"):
            config.workeroutput["left_out"] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        self.left_out = getattr(node, "workeroutput", {}).get("left_out", self.left_out)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "long" not in report.keywords:
            self.unmarked_seconds[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, seconds in self.unmarked_seconds.most_common():
            if seconds > UNMARKED_S:
                terminalreporter.line(f"{name} took {seconds:.0f} s and is not marked long(seconds)")
        if self.left_out:
            terminalreporter.section("long tests left out")
            for unit, tests in self.left_out.items():
                terminalreporter.line(unit if tests == 1 else f"{unit}: {tests} tests")
            count = sum(self.left_out.values())
            terminalreporter.line(
                f"{count} long tests left out by --sample-seed={self.seed}; make test-all runs every test"
            )
