"""What a micro-step does with any batch, from a few with sizes of known formulas."""

import pytest

from memlab.simulator.trace.alike_steps import AlikeStep, Left, renamed
from memlab.simulator.trace.events import Alloc, BeginPhase, Free, Workspace
from memlab.simulator.trace.measured_steps import Formulas
from memlab.simulator.trace.trace_format import Site
from memlab.simulator.trace.work_items import BeginWorkPhase, KernelLaunch, StepWork

SITE = Site("", "aten.cat.default", "model.py:1", "forward", "layers.0", ())


def step(size: tuple[int, ...], size_of, phase: int = 3) -> AlikeStep:
    """A micro-step of a batch with the measures ``size``, which makes one block."""
    nbytes = size_of(*size)
    events = renamed([Alloc(50, nbytes, 0, 7), BeginPhase(phase), Workspace(nbytes, 0), Free(50)], [], [])
    items = [KernelLaunch(3, 1, 0, 1, 2 * size[0], (nbytes, 8), 0), BeginWorkPhase(4, 5, phase)]
    left = [Left(0, (size[0], 4), "bfloat16", "cuda:0")]
    return AlikeStep(size, events, [SITE], [(size[0], 64)], StepWork(items, [1, 1], 2, 0), left, "loss")


def formulas_of(steps: list[AlikeStep]) -> Formulas | None:
    return Formulas.of([each.outline for each in steps[:-1]], steps[-1], tensors=1)


BATCHES = [(40, 7, 3), (52, 9, 3), (47, 2, 3), (45, 4, 3)]


@pytest.mark.parametrize(
    "size_of",
    [
        lambda longest, answers, images: 512,
        lambda longest, answers, images: 128 * longest + 64,
        lambda longest, answers, images: 6 * longest * longest,
        lambda longest, answers, images: 1000 * answers,
    ],
)
def test_formulas_follow_from_four_batches(size_of):
    steps = [step(size, size_of) for size in BATCHES]
    assert formulas_of(steps[:-1]) is None
    formulas = formulas_of(steps)
    expected, found = step((19, 11, 3), size_of, phase=8), formulas.at((19, 11, 3))
    assert found.form == expected.form and (found.amounts == expected.amounts).all()
    assert (found.left, found.shapes) == (expected.left, expected.shapes)
    assert formulas.at((19, 11, 4)) is None  # no batch has shown what follows from the third measure
    assert (formulas.at((58, 11, 3)).amounts == step((58, 11, 3), size_of).amounts).all()
    assert formulas.at((59, 11, 3)) is None  # much larger than 52


def test_two_equal_batches_are_enough_for_a_third():
    steps = [step((40, 7, 3), lambda *size: 512)] * 2
    assert formulas_of(steps).at((40, 7, 3)).events == steps[0].events
    assert formulas_of(steps).at((39, 7, 3)) is None


def test_sizes_that_follow_from_no_measure_have_no_formulas():
    assert formulas_of([step(size, lambda longest, *rest: longest**3) for size in BATCHES]) is None
    assert formulas_of([step(size, lambda longest, answers, images: longest * answers) for size in BATCHES]) is None


def test_a_step_is_cut_at_its_phases():
    (first, its_work), (second, work) = step((40, 7, 3), lambda *size: 512).phases()
    assert first == [Alloc(0, 512, 0, 7)] and second == [Workspace(512, 0), Free(0)]
    assert (its_work.operators, its_work.modules, its_work.events_before) == (4, 5, [1])
    assert work == StepWork([], [], 2, 0)


def test_steps_that_free_what_they_find_in_another_order_are_not_alike():
    def freeing(*keys: int) -> AlikeStep:
        return AlikeStep((1,), [Free(key) for key in keys], [], [], StepWork([], [], 0, 0), [], "")

    assert freeing(-1, -2).form == freeing(-1, -2).form != freeing(-2, -1).form
