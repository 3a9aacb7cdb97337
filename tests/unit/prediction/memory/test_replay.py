"""What a replay says of places in a trace, it says of the trace's own events."""

import pytest

from memlab.prediction.memory.replay import as_plain_training, replay
from memlab.simulator.allocator import Options
from memlab.simulator.trace.events import Alloc, BeginPhase, BeginPoint, EmptyCache, Free, Synchronize
from memlab.simulator.trace.trace_format import Trace

MIB = 1 << 20
UNLIMITED = 1 << 62
EVENTS = [
    BeginPhase(1), Alloc(1, 50 * MIB, 0, 0), Synchronize(1), Free(1), BeginPhase(0), EmptyCache(), BeginPoint(),
    BeginPhase(2), Synchronize(1), Alloc(2, 20 * MIB, 0, 0), Synchronize(2), Alloc(3, 20 * MIB, 0, 0),
    Free(3), BeginPhase(0),
]  # fmt: skip
HIGHEST, FORWARD = 11, 7
TRACE = Trace(0, 1, events=EVENTS, phases=["", "engine_init", "forward"], steps=[FORWARD])


@pytest.mark.parametrize("cold", [False, True])
def test_places_are_those_of_the_trace(cold):
    trace = as_plain_training(TRACE) if cold else TRACE
    found = replay(trace, Options(), UNLIMITED, with_curve=True)
    assert found.peak_events["forward"] == HIGHEST
    assert found.curve_phases[0] == (FORWARD, "forward")
    assert max(found.curve, key=lambda point: point[1])[0] == HIGHEST
    assert found.peak_event == (1 if cold else HIGHEST)  # in a plain training, building counts


def test_an_out_of_memory_is_at_its_request():
    assert replay(TRACE, Options(), 50 * MIB).oom is None
    assert replay(TRACE, Options(), 30 * MIB).oom["event"] == 1


def test_without_the_protocol_nothing_is_given_back():
    assert replay(TRACE, Options(), UNLIMITED).peak_reserved == 40 * MIB
    assert replay(as_plain_training(TRACE), Options(), UNLIMITED).peak_reserved == 50 * MIB
