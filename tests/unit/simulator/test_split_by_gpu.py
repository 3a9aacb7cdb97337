"""The trace of a process with several GPUs, as traces of one GPU each."""

from dataclasses import replace

import pytest

from memlab.prediction.memory.replay import replay
from memlab.simulator.allocator import Options
from memlab.simulator.outside.appearances import HANDLE, Appearance
from memlab.simulator.trace.events import (
    STREAMS,
    Alloc,
    BeginPhase,
    EmptyCache,
    Free,
    HostAlloc,
    RecordStream,
    Synchronize,
    Workspace,
)
from memlab.simulator.trace.split_by_gpu import split_by_gpu
from memlab.simulator.trace.trace_format import Piece, Site, Trace
from memlab.simulator.trace.work_items import HostWork

MIB = 1 << 20

WHOLE = Trace(
    0,
    1,
    events=[
        BeginPhase(0),
        Alloc(1, 30 * MIB, 0, 0),
        Alloc(2, 50 * MIB, STREAMS, 0),
        HostAlloc(1, 70 * MIB, False),
        BeginPhase(1),
        Alloc(3, 20 * MIB, STREAMS + 3, 0),
        RecordStream(2, STREAMS + 3),
        Synchronize(2),
        Free(2),
        Workspace(5 * MIB, STREAMS),
        Free(1),
        EmptyCache(),
        Alloc(4, 10 * MIB, 0, 0),
    ],
    phases=["model_build", "forward"],
    sites=[Site("", "", "", "", "", ())],
    steps=[4],
    pieces=[Piece(None, None, True), Piece(1, None, True)],
    work=[HostWork(1, 0, (8,)), HostWork(1, 0, (8,))],
    events_before=[5, 12],
    appearances=[Appearance(1, HANDLE), Appearance(5, HANDLE)],
    epochs=[{"purpose": "training"}],
    gpus=[3, 1],
)


def test_each_gpu_has_its_own_memory_and_the_marks_of_the_process():
    first, second = split_by_gpu(WHOLE)
    assert [(part.rank, part.world_size, part.gpu, part.gpus) for part in (first, second)] == [
        (0, 2, 1, []),
        (1, 2, 3, []),
    ]
    assert first.events == [
        BeginPhase(0),
        Alloc(2, 50 * MIB, 0, 0),
        HostAlloc(1, 70 * MIB, False),
        BeginPhase(1),
        Alloc(3, 20 * MIB, 3, 0),
        RecordStream(2, 3),
        Synchronize(1),  # of the first two requests, one was on this GPU
        Free(2),
        Workspace(5 * MIB, 0),
        EmptyCache(),
    ]
    assert [event for event in second.events if isinstance(event, Alloc | Free)] == [
        Alloc(1, 30 * MIB, 0, 0),
        Free(1),
        Alloc(4, 10 * MIB, 0, 0),
    ]
    assert (first.steps, first.events_before, first.appearances) == ([3], [4, 10], [Appearance(4, HANDLE)])
    assert (second.steps, second.events_before, second.appearances) == ([3], [4, 7], [Appearance(1, HANDLE)])
    assert (first.pieces, first.work, first.epochs, second.epochs) == (WHOLE.pieces, WHOLE.work, WHOLE.epochs, [])
    peaks = [replay(part, Options(), 1 << 40).peak_allocated for part in (first, second)]
    assert peaks == [70 * MIB, 30 * MIB]
    for part in (first, second):
        part.check()


def test_a_process_with_one_gpu_stays_whole():
    trace = replace(WHOLE, gpus=[])
    assert split_by_gpu(trace) == [trace]


@pytest.mark.parametrize("wrong", [{"gpus": [0, 0]}, {"gpus": [0, 64]}, {"world_size": 2}])
def test_gpus_that_are_not_those_of_one_process_are_refused(wrong):
    WHOLE.check()
    with pytest.raises(ValueError, match="gpus are not those of one process"):
        replace(WHOLE, **wrong).check()
