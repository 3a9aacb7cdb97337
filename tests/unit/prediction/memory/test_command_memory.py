"""Memory of a command by phase and by step, from the replay of its trace."""

from memlab.prediction.memory.rank_results import command_memory, out_of_memory
from memlab.prediction.memory.replay import replay
from memlab.simulator.allocator import Options
from memlab.simulator.outside.parts import OutsidePart
from memlab.simulator.trace.events import Alloc, BeginPhase, Event, Free, HostAlloc, Workspace
from memlab.simulator.trace.trace_format import Piece, Site, Trace

MIB = 2**20
PHASES = ["", "model_build", "first_forward", "forward", "evaluate"]
LINE, LOOP = "train.py:7", "train.py:20"


def trace(pieces: list[tuple[str, int | None, list[Event]]]) -> Trace:
    """Pieces of a command's run, each (phase, step, events)."""
    events: list[Event] = []
    for phase, _, own in pieces:
        events += [BeginPhase(PHASES.index(phase)), *own]
    told = [Piece(step, LOOP, True) for _, step, _ in pieces]
    return Trace(0, 1, events=events, phases=PHASES, sites=[Site("weights", "", "", "", "", (), LINE)], pieces=told)


def block(key: int, mib: int) -> Alloc:
    return Alloc(key, mib * MIB, 0, 0)


RUN = trace(
    [
        ("model_build", None, [block(1, 40), HostAlloc(9, 8 * MIB, False)]),
        ("first_forward", 1, [block(2, 20), Free(2)]),
        ("", 1, [block(3, 2)]),
        ("forward", 2, [block(4, 60), Free(4)]),
        ("evaluate", None, [block(5, 80), Free(5)]),
    ]
)


def test_every_phase_and_every_step_has_its_own_peak():
    found = command_memory(RUN, replay(RUN, Options(), 1 << 40), [OutsidePart(0, "CUDA context", "", 1000 * MIB)])
    peaks = {name: phase["peak_allocated_bytes"] // MIB for name, phase in found["phases"].items()}
    assert peaks == {"model_build": 40, "first_forward": 60, "forward": 102, "evaluate": 122}
    assert [found["steps"][step]["peak_allocated_bytes"] // MIB for step in (1, 2)] == [60, 102]
    assert found["steps"][1]["phases"] == {"forward": [60 * MIB, 60 * MIB]}
    forward = found["phases"]["forward"]
    assert forward["used_bytes"] == forward["peak_reserved_bytes"] + 1000 * MIB
    assert found["peak"] == {"step": None, "phase": "evaluate", "where": LOOP, "bytes": 122 * MIB}


def test_host_memory_is_told_by_phase():
    found = command_memory(RUN, replay(RUN, Options(), 1 << 40), [])
    before, later = (found["phases"][name]["host_peak_bytes"] for name in ("model_build", "forward"))
    assert before == later  # the tensor on the host stays
    without = trace([("model_build", None, [block(1, 40)])])
    alone = command_memory(without, replay(without, Options(), 1 << 40), [])
    assert before - alone["phases"]["model_build"]["host_peak_bytes"] == 8 * MIB


def test_an_out_of_memory_names_phase_step_and_line_and_what_follows_does_not_count():
    result = replay(RUN, Options(), 100 * MIB)
    assert out_of_memory(RUN, result) == {
        "phase": "forward",
        "step": 2,
        "where": LINE,
        "requested_bytes": 60 * MIB,
        "event": result.oom["event"],
    }
    found = command_memory(RUN, result, [])
    assert "evaluate" not in found["phases"] and found["steps"][2]["peak_allocated_bytes"] == 42 * MIB


def test_a_workspace_that_does_not_fit_names_the_line_of_its_phase():
    searching = trace([("forward", 1, [block(1, 40), Workspace(90 * MIB, 0, is_taken=True)])])
    found = out_of_memory(searching, replay(searching, Options(), 100 * MIB))
    assert (found["where"], found["requested_bytes"]) == (LOOP, 90 * MIB)
