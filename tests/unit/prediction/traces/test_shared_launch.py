"""A launch of several points is made of the traces of each."""

from memlab.prediction.memory.replay import replay, replay_points
from memlab.prediction.traces.shared_launch import cycle, joined_points
from memlab.simulator.allocator import Options
from memlab.simulator.trace.events import Alloc, BeginPhase, BeginPoint, EmptyCache, Free
from memlab.simulator.trace.trace_format import Site, Trace

MIB = 1 << 20
PHASES = ["", "engine_init", "first_forward", "first_optimizer_step", "forward", "optimizer_step"]
SITES = [Site(kind, "", "", "", "", ()) for kind in ("weights", "activations", "states", "loss")]
WEIGHTS, ACTIVATIONS, STATES, LOSS = range(4)


def trace_of(tokens: int) -> Trace:
    """Weights of 100 MiB; activations of a MiB a token in each step; states of 50 MiB in the first; a loss that lives
    until the next step."""
    trace = Trace(0, 1, 1, tokens, phases=list(PHASES), sites=list(SITES))
    add = trace.events.append
    keys = iter(range(1, 100))

    def phase(name):
        add(BeginPhase(PHASES.index(name)))

    def alloc(mib, site):
        key = next(keys)
        add(Alloc(key, mib * MIB, 0, site))
        return key

    phase("engine_init")
    alloc(100, WEIGHTS)
    phase("")
    loss = None
    for step, prefix in enumerate(("first_", "")):
        if step == 0:
            trace.events += [EmptyCache(), BeginPoint()]
        trace.steps.append(len(trace.events))
        phase(f"{prefix}forward")
        activations = alloc(tokens, ACTIVATIONS)
        if loss is not None:
            add(Free(loss))
        loss = alloc(2, LOSS)
        add(Free(activations))
        phase("")
        phase(f"{prefix}optimizer_step")
        if step == 0:
            alloc(50, STATES)
        phase("")
    return trace


def replayed(*tokens: int):
    return replay_points(joined_points([trace_of(each) for each in tokens]), Options(), 1 << 40)


def test_one_point_is_the_trace_itself():
    trace = trace_of(40)
    assert joined_points([trace]) is trace


def test_the_second_step_hangs_together_with_what_is_around():
    found = cycle(trace_of(40))
    assert (len(found.enters), len(found.leaves), len(found.stays)) == (1, 1, 2)


def test_each_point_has_its_own_peaks():
    small, large, small_again = replayed(20, 400, 20)
    assert large.peak_allocated - small.peak_allocated == 380 * MIB
    assert small_again.peak_allocated == small.peak_allocated
    assert [set(point.phases) for point in (large, small_again)] == [set(PHASES) - {""}] * 2


def test_what_a_step_left_is_freed_once():
    """However many points: one loss is alive, and the states are made once."""
    launch = joined_points([trace_of(tokens) for tokens in (20, 30, 40, 50)])
    assert replay(launch, Options(), 1 << 40).phases["optimizer_step"].end_allocated_bytes == 152 * MIB
    assert sum(isinstance(event, BeginPoint) for event in launch.events) == 4
    assert len(launch.steps) == 8


def test_the_order_of_points_decides_where_states_are():
    """After a large forward the states are cut from what it gave back, and the next one needs a segment anew; after a
    small one they have segments of their own."""
    fresh = replayed(400)[-1]
    behind_a_small_one = replayed(20, 400)[-1]
    assert fresh.peak_allocated == behind_a_small_one.peak_allocated
    assert fresh.peak_reserved > behind_a_small_one.peak_reserved + 300 * MIB


def test_an_out_of_memory_ends_the_launch():
    launch = joined_points([trace_of(20), trace_of(400), trace_of(20)])
    small, large = replay_points(launch, Options(), 300 * MIB)
    assert small.oom is None
    assert large.oom["phase"] == "first_forward"
