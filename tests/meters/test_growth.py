"""Memory that grows from step to step: whether it goes on, what keeps it, in which line. This file is the script."""

from collections import deque
from inspect import currentframe
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from memlab.core.sizes import MIB
from memlab.meters import keepers
from memlab.meters.batches import BatchSize
from memlab.meters.growth import GrowthWatch, growth_of
from memlab.meters.source_lines import loops_around, passes_of, uses_of
from memlab.meters.steps import Step

STEPS = 46
EACH = 2 * MIB


@pytest.fixture
def output(monkeypatch):
    """``output()``: what a step computes. The GPU is the CPU here."""
    monkeypatch.setattr(keepers, "GPU", "cpu")
    weight = torch.ones(1, requires_grad=True)
    return lambda: weight * torch.empty(EACH // 4)


@pytest.fixture
def growth():
    return GrowthWatch(find_end=lambda: None)


def ends(growth: GrowthWatch, number: int, kept: int, length: int = 8) -> None:
    """End a step after which ``kept`` outputs are there."""
    step = Step(number, begin=None)
    step.add_batch(BatchSize(samples=1, padded_length=length))
    step.figures.total.end_requested_bytes = 100 * MIB + kept * EACH
    growth.step_ends(step)


def line_before(frame) -> str:
    return f"{Path(__file__).name}:{frame.f_lineno - 1}"


def test_a_list_that_keeps_each_output_grows_without_a_bound(growth, output):
    kept = []
    for number in range(1, STEPS + 1):
        kept.append(output())
        where = line_before(currentframe())
        ends(growth, number, len(kept))
    facts = growth.facts("stopped")
    assert (facts["bytes_per_step"], facts["steps_seen"], facts["last_step"]) == (EACH, 29, STEPS)
    kept_by = facts["kept_by"]
    assert (kept_by["name"], Path(kept_by["where"]).name, kept_by["bound"]) == ("kept", where, None)
    assert kept_by["keeps_graph"] and not kept_by["is_emptied"] and not kept_by["is_scalar"]
    assert (facts["end_step"], growth.facts("running")["end_step"]) == (None, None)
    assert growth.facts("finished")["end_step"] == STEPS  # the script ended itself, and lasted
    growth.steps_of_script = lambda: 3 * STEPS  # of a script that got a part of its batches
    assert growth.facts("finished")["end_step"] == 3 * STEPS


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_nothing_is_said_before_what_keeps_memory_can_be_found(growth, output, steps):
    kept = []
    for number in range(1, steps + 1):
        kept.append(output())
        ends(growth, number, len(kept))
    facts = growth.facts("stopped")
    assert facts is None if steps < 5 else facts["kept_by"]["name"] == "kept"


@pytest.mark.parametrize("steps", [16, STEPS, 60])
def test_a_deque_grows_to_its_bound(growth, output, steps):
    recent = deque(maxlen=50)
    for number in range(1, steps + 1):
        recent.append(output())
        ends(growth, number, len(recent))
    facts = growth.facts("stopped")
    if steps < 50:
        kept_by = facts["kept_by"]
        assert (kept_by["name"], kept_by["bound"], kept_by["full_at_step"]) == ("recent", 50, 50)
    else:
        assert facts is None or facts["kept_by"]["full_at_step"] <= 60


def test_a_buffer_that_fills_late_grows_until_its_places_are_taken(growth, output):
    places = [None] * 20
    for number in range(1, 26):
        if number > 10:
            places[number % 20] = output()
        ends(growth, number, max(number - 10, 0))
    kept_by = growth.facts("stopped")["kept_by"]
    assert (kept_by["name"], kept_by["bound"], kept_by["full_at_step"]) == ("places", 20, 30)
    for number in range(26, 60):
        ends(growth, number, 20)
    assert growth.facts("stopped") is None


def test_a_cache_by_shape_does_not_grow_over_steps_of_equal_shape(growth, output):
    cache = {}
    for number in range(1, STEPS + 1):
        length = number % 12
        cache.setdefault(length, output())
        ends(growth, number, len(cache), length)
    assert growth.facts("stopped") is None


def test_memory_that_settles_does_not_grow(growth):
    for number in range(1, STEPS + 1):
        ends(growth, number, min(number, 9))
    assert growth.facts("stopped") is None


def test_a_list_that_a_loop_empties_is_named_and_does_not_decide(growth, output):
    pending = []
    for number in range(1, STEPS + 1):
        pending.append(output())
        if number % 100 == 0:
            pending.clear()
        ends(growth, number, len(pending))
    assert growth.facts("stopped")["kept_by"]["is_emptied"]


class History:
    of_class: ClassVar[list] = []

    def __init__(self):
        self.seen = {"outputs": []}

    def add_to_class(self, output):
        self.of_class.append({"output": output})

    def add(self, output):
        self.seen["outputs"].append((output, 1))


def test_a_list_in_an_attribute_is_named_with_its_line(growth, output):
    history = History()
    for number in range(1, 10):
        history.add(output())
        ends(growth, number, number)
    kept_by = growth.facts("stopped")["kept_by"]
    line = uses_of(Path(__file__).read_text(), "seen").keeps
    assert kept_by["name"] == "history.seen['outputs']"
    assert kept_by["where"].endswith(f"{Path(__file__).name}:{line}")


def test_a_list_in_a_class_is_named(growth, output):
    history = History()
    for number in range(1, 10):
        history.add_to_class(output())
        ends(growth, number, number)
    History.of_class.clear()
    assert growth.facts("stopped")["kept_by"]["name"] == "History.of_class"


def test_a_sum_that_keeps_the_graph_of_each_step_is_named(growth, output):
    total = 0
    for number in range(1, 10):
        total = total + output().mean()
        where = line_before(currentframe())
        ends(growth, number, number)
    kept_by = growth.facts("stopped")["kept_by"]
    assert (kept_by["name"], Path(kept_by["where"]).name, kept_by["keeps_graph"]) == ("total", where, True)
    assert kept_by["is_scalar"]


def deep(output, levels):
    return deep([{"of": output}], levels - 1) if levels else output


@pytest.mark.parametrize("kept", ["too deep", "in a long list", "without a name"])
def test_a_graph_is_not_named_where_a_larger_container_is_not(growth, output, monkeypatch, kept):
    """The sum keeps one element a step: what keeps the outputs is not found, and no other variable stands for it."""
    outputs, total = [], 0
    if kept == "without a name":
        named = keepers.variable_of
        monkeypatch.setattr(keepers, "variable_of", lambda held, until: None if held is outputs else named(held, until))
    for number in range(1, 10):
        of_step = [output().detach(), *(torch.empty(1) for _ in range(keepers.MOST_INSIDE))]
        outputs.append({"too deep": deep(of_step[0], 3), "in a long list": of_step}.get(kept, of_step[0]))
        total = total + output().mean()
        ends(growth, number, number)
    assert growth.facts("stopped")["kept_by"] is None
    assert len(outputs) == 9 and total.requires_grad


def test_outputs_with_a_graph_are_named_though_they_hold_more(growth, output):
    outputs = []
    for number in range(1, 10):
        outputs.append((torch.empty(1) * output().mean(), deep(torch.empty(1), 3)))
        ends(growth, number, number)
    kept_by = growth.facts("stopped")["kept_by"]
    assert (kept_by["name"], kept_by["keeps_graph"]) == ("outputs", True)


def test_small_tensors_that_are_kept_are_not_named_for_large_growth(growth, output):
    small = []
    for number in range(1, 10):
        small.append(torch.empty(1))
        ends(growth, number, number)
    assert growth.facts("stopped")["kept_by"] is None and len(small) == 9


def test_a_slow_growth_is_not_named_after_the_larger_tensors_of_one_step(growth, output):
    kept = []
    for number in range(1, 60):
        of_step = {name: torch.empty(EACH * 4) for name in ("loss", "logits")}  # made anew in each step
        kept.append(output())
        ends(growth, number, len(kept))
    assert growth.facts("stopped")["kept_by"]["name"] == "kept" and of_step


@pytest.mark.parametrize(
    ("held", "each"),
    [
        ([10, 12, 14, 16], 2),
        ([10, 10, 10, 18, 18, 18, 26, 26, 26], 2),  # every third step
        ([10, 12, 14, 14, 14, 14], 0),
        ([10, 12, 14, 10, 12, 14], 0),
        ([10, 20, 30, 29, 28, 27], 0),
        ([10], 0),
        ([], 0),
    ],
)
def test_growth_goes_on_if_the_later_half_still_grows(held, each):
    assert growth_of([(number, nbytes * MIB) for number, nbytes in enumerate(held, 2)]) == each * MIB


LOOPS = """
for epoch in range(args.epochs):
    for step in tqdm(range(10, 100)):
        for micro in range(4):
            train()
        optimizer.step()
while True:
    optimizer.step()
"""


class Arguments:
    epochs = 0

    def __init__(self):
        self.epochs = 3


def test_loops_over_ranges_say_how_many_passes_have_begun():
    variables = {"args": Arguments(), "epoch": 1, "step": 19, "micro": 3}
    assert passes_of(loops_around(LOOPS, 6), variables) == (90 + 10, 270)
    assert passes_of(loops_around(LOOPS, 5), variables) == (4 * 99 + 4, 4 * 270)
    assert passes_of(loops_around(LOOPS, 8), variables) is None
    assert passes_of(loops_around(LOOPS, 6), {"args": 3}) is None
    assert passes_of([], {}) == (1, 1)


def test_an_object_that_cannot_be_looked_at_ends_no_step(growth, monkeypatch):
    looks = []

    def fails(self, step, bytes_per_step):
        looks.append(step)
        raise TypeError("no length")

    monkeypatch.setattr(keepers.Keepers, "look", fails)
    for number in range(1, 20):
        ends(growth, number, number)
    assert growth.facts("stopped")["kept_by"] is None
    assert looks == [3, 4, 5, 7, 11, 19]  # as rarely as looks that succeed


def test_what_a_script_has_from_locals_stays(growth, output):
    def train(rate):
        options = locals()
        kept = []
        for number in range(1, 10):
            kept.append(output())
            ends(growth, number, len(kept))
        return options

    assert train(rate=0.1)["rate"] == 0.1
    assert growth.facts("stopped")["kept_by"]["name"] == "kept"


def test_a_look_ends_in_time(growth, output, monkeypatch):
    monkeypatch.setattr(keepers, "MOST_S", 0.0)
    kept = []
    for number in range(1, 10):
        kept.append(output())
        ends(growth, number, len(kept))
    assert growth.facts("stopped")["kept_by"] is None
