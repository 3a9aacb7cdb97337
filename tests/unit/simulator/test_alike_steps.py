"""What a decoding step does at any length, from a few steps with sizes of known formulas."""

import pytest

from memlab.simulator.trace.alike_steps import AlikeStep, Law, Left, renamed
from memlab.simulator.trace.events import Alloc, EmptyCache, Free, HostAlloc, HostFree
from memlab.simulator.trace.trace_format import Site
from memlab.simulator.trace.work_items import KernelLaunch, StepWork

SITE = Site("", "aten.cat.default", "model.py:1", "forward", "layers.0", ())


def step(length: int, size_of, blocks: int = 1) -> AlikeStep:
    """A step that makes ``blocks`` blocks of one size, and frees the block that it found."""
    events = [*(Alloc(block, size_of(length), 0, 7) for block in range(blocks)), Free(-1)]
    work = StepWork([KernelLaunch(3, 1, 0, 1, 2 * length, (size_of(length), 8), 0)], [1], 2, 0)
    left = [Left(0, (2, length, 4), "bfloat16", "cuda:0")]
    return AlikeStep(length, events, [SITE] * blocks, [(length, 64)] * blocks, work, left, "outputs")


def rounded(length: int, to: int) -> int:
    return -(-length // to) * to


@pytest.mark.parametrize(
    ("size_of", "needed"),
    [
        (lambda length: 512, 9),
        (lambda length: 128 * length + 64, 9),
        (lambda length: 6 * length * length, 9),
        (lambda length: 2 * rounded(length, 8), 17),
        (lambda length: 2 * length * rounded(length, 8), 25),
    ],
)
def test_a_law_follows_from_the_steps_that_it_needs(size_of, needed):
    steps = [step(length, size_of) for length in range(41, 41 + needed)]
    assert Law.of(steps[:-1]) is None
    law = Law.of(steps)
    for length in (2, 40, 41 + needed, 200, 1000):
        expected, found = step(length, size_of), law.at(length)
        assert found.form == expected.form and law.holds(expected)
        assert [event.nbytes for event in found.events[:-1]] == [size_of(length)]
        assert (found.work, found.left, found.shapes) == (expected.work, expected.left, expected.shapes)


def test_a_step_is_traced_where_sizes_may_be_rounded_otherwise():
    law = Law.of([step(length, lambda length: 4 * rounded(length, 32)) for length in range(34, 43)])
    assert law.at(64) and law.at(97) is None
    traced = step(97, lambda length: 4 * rounded(length, 32))
    assert not law.holds(traced)
    law.end(97)
    assert law.at(96) and law.at(98) is None
    other = Law.of([step(length, lambda length: 4 * length) for length in range(34, 43)])
    assert other.at(97) is None and other.holds(step(97, lambda length: 4 * length)) and other.at(97)


def test_steps_that_are_not_alike_have_no_law():
    chance = [step(length, lambda length: length * length * length % 1000) for length in range(10, 110)]
    assert Law.of(chance) is None
    assert Law.of([step(length, lambda length: 8, blocks=1 + length % 3) for length in range(10, 110)]) is None


def test_blocks_have_numbers():
    events = [Alloc(50, 8, 0, 0), HostAlloc(51, 9, False), Free(40), Alloc(52, 8, 0, 0), HostFree(51), Free(50)]
    assert [event.key for event in renamed(events, [40], [52])] == [0, 1, -1, 2, 1, 0]
    assert renamed(events, [40], []) is None  # the third block stays with something unknown
    assert renamed(events, [], [52]) is None  # an older block is freed
    assert renamed(events, [40, 41], [52]) is None  # a block of the cache is not freed
    assert renamed(events, [40], [52, 52]) is None  # two tensors share a block
    assert renamed([*events, EmptyCache()], [40], [52]) is None
