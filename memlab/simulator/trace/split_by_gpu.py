"""Traces of the GPUs of one process: each GPU has an allocator of its own, and counts as a rank from here on."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from memlab.simulator.trace.events import STREAMS, Alloc, Event, GpuOfEvents, RecordStream, Synchronize, Workspace
from memlab.simulator.trace.trace_format import Trace


def split_by_gpu(trace: Trace) -> list[Trace]:
    """Return a trace for each GPU of a process, in the order of their indices: as ranks 0, 1, ... of as many.

    Each has the phases, steps and pieces of the process, its host memory, and all of its work: the GPUs are taken to
    compute one after the other. The epochs that were read are the first one's.
    """
    if len(trace.gpus) < 2:
        return [trace]
    owners = list(map(GpuOfEvents(), trace.events))
    numbers = sorted(range(len(trace.gpus)), key=trace.gpus.__getitem__)
    process = replace(trace, world_size=len(numbers), gpus=[])
    parts = [_of_gpu(replace(process, gpu=trace.gpus[number]), owners, number) for number in numbers]
    return [replace(part, rank=rank, epochs=[] if rank else part.epochs) for rank, part in enumerate(parts)]


def _of_gpu(trace: Trace, owners: Sequence[int | None], number: int) -> Trace:
    """Return the trace without the memory of other GPUs. ``owners``: number of the GPU of each event."""
    requests = [owner for event, owner in zip(trace.events, owners, strict=True) if isinstance(event, Alloc)]
    own_requests = [index for index, owner in enumerate(requests) if owner == number]

    def alone(event: Event) -> Event:
        match event:
            case Alloc() | RecordStream() | Workspace():
                return event._replace(stream=event.stream % STREAMS)
            case Synchronize():
                return Synchronize(bisect_left(own_requests, event.requests))
        return event

    def makes_appear(event: int) -> bool:
        """Whether what appears before an event is for this GPU: for the next request."""
        later = (owners[index] for index in range(event, len(owners)) if isinstance(trace.events[index], Alloc))
        return next(later, 0) == number

    own = replace(trace, appearances=[each for each in trace.appearances if makes_appear(each.event)])
    own = own.only([owner in (None, number) for owner in owners])
    return replace(own, events=list(map(alone, own.events)))
