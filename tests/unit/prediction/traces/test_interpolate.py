"""Sizes at a new point from those at traced ones. No torch."""

import pytest

from memlab.prediction.traces.interpolate import UNCHECKED, Interpolator
from memlab.simulator.constants import gpu_model
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.reduction_scratch import EACH_INDEX, EACH_SUM, EmbeddingBlock, over_rows
from memlab.simulator.trace.trace_format import Trace

SIZES = {
    "weights": lambda b, t: 4096,
    "activations": lambda b, t: 8192 * b * t,
    "scores": lambda b, t: 64 * b * t * t,
    "mask": lambda b, t: 2 * t * t,
    "rotary": lambda b, t: 128 * t,
    "workspace": lambda b, t: 512 * b * (-(-t // 128) * 128),
    "parts of a gradient": lambda b, t: 6 * 16_400 * b * -(-t // 64),
    "flattened with weights": lambda b, t: 4096 + 2 * b * t,
}


def traced(micro: int, tokens: int, sizes=SIZES) -> Trace:
    events = [BeginPhase(0)]
    for key, size in enumerate(sizes.values()):
        events += [Alloc(key, size(micro, tokens), 0, 0), Free(key)]
    return Trace(0, 8, micro, tokens, events=events, phases=["forward"])


@pytest.mark.parametrize("point", [(1, 2001), (4, 77), (16, 8192)])
def test_sizes_are_exact(point):
    traces = [traced(1, 150), traced(2, 330), traced(3, 515)]
    assert Interpolator(traces).at(*point).events == traced(*point).events


@pytest.mark.parametrize(("smooth_from", "decided"), [(1, True), (1000, True), (1001, False), (None, False)])
def test_kernels_that_choose_sizes_in_another_way_are_traced(smooth_from, decided):
    traces = [traced(1, 1500), traced(2, 3300), traced(3, 5150)]
    for trace in traces:
        trace.smooth_from = smooth_from
    assert (Interpolator(traces).at(2, 500) is not None) == decided


def test_two_points_do_not_decide():
    assert Interpolator([traced(1, 150), traced(2, 330)]).at(1, 500) is None


def test_another_batch_is_not_guessed_from_one():
    traces = [traced(1, 150), traced(1, 330), traced(1, 515)]
    assert Interpolator(traces).at(1, 700).events == traced(1, 700).events
    assert Interpolator(traces).at(2, 700) is None


def test_a_size_that_fits_nothing_is_not_guessed():
    odd = {"rounded up to a power of two": lambda b, t: 1 << (b * t).bit_length()}
    assert Interpolator([traced(1, 150, odd), traced(2, 330, odd), traced(3, 515, odd)]).at(1, 200) is None


def test_another_sequence_is_not_mixed_in():
    shorter = {name: SIZES[name] for name in list(SIZES)[1:]}
    assert Interpolator([traced(1, 150), traced(2, 330), traced(3, 515, shorter)]).at(1, 200) is None


def test_one_token_is_only_ever_traced():
    traces = [traced(1, 150), traced(2, 330), traced(3, 515)]
    assert Interpolator(traces).at(1, 1) is None
    assert Interpolator([*traces[:2], traced(1, 1)]).at(1, 500) is None


def test_two_points_decide_where_nothing_is_left_to_check():
    traces = [traced(1, 500), traced(2, 500)]
    assert Interpolator(traces).at(7, 500) is None
    assert Interpolator(traces, UNCHECKED).at(7, 500).events == traced(7, 500).events


def with_sum(micro: int, tokens: int) -> Trace:
    """The same with the gradient of a norm's weights, whose buffer grows in steps, from 1,024 rows on."""
    trace = traced(micro, tokens)
    rows, key = micro * tokens, len(SIZES)
    found = over_rows((rows, 2048), (2048, 1), 0, {0}, gpu_model("NVIDIA H200"))
    trace.events += [Alloc(key, found.buffer_bytes, 0, 0, found), Free(key)]
    return trace


@pytest.mark.parametrize("point", [(1, 500), (1, 2001), (1, 1023), (1, 1024), (4, 77), (16, 8192)])
def test_what_a_sum_takes_is_exact(point):
    traces = [with_sum(1, 150), with_sum(2, 1330), with_sum(3, 5150)]
    assert Interpolator(traces).at(*point).events == with_sum(*point).events


def with_embedding(micro: int, tokens: int) -> Trace:
    blocks = [EmbeddingBlock(micro * tokens, 8000, EACH_INDEX, 8), EmbeddingBlock(micro * tokens, 8000, EACH_SUM, 1024)]
    events = [Alloc(key, block.buffer_bytes, 0, 0, block) for key, block in enumerate(blocks)]
    return Trace(0, 1, micro, tokens, events=events, phases=["backward"])


@pytest.mark.parametrize("micro", [4, 8, 100])
def test_the_partial_sums_of_an_embedding_are_computed_also_where_their_formula_changes(micro):
    """Without partial sums up to 3,072 tokens; with a row for each token that occurs, of 8,000 at most."""
    traces = [with_embedding(size, 512) for size in (2, 5, 9)]
    assert Interpolator(traces).at(micro, 512).events == with_embedding(micro, 512).events
    sizes = [event.nbytes for event in with_embedding(micro, 512).events]
    assert sizes == {4: [0, 0], 8: [32_768, 4505 * 1024], 100: [409_600, 13_120 * 1024]}[micro]
