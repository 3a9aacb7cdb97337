"""Ranks of a command that compute on the same GPU: each has what the others leave of its memory."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from memlab.core.sizes import UNLIMITED
from memlab.prediction.memory.outside import outside_parts
from memlab.prediction.memory.replay import replay
from memlab.prediction.traces.store import stands_for
from memlab.simulator import allocator
from memlab.simulator.outside.parts import outside_bytes, shipped
from memlab.simulator.trace.trace_format import Trace, Traces


def gpus_of_ranks(traces: Traces, ranks: int, ranks_of_node: int, gpus: int) -> list[int]:
    """Return for each rank the index of its GPU among the ``gpus`` of its node.

    Where not all ranks were traced, the first and the last rank of a node tell how many GPUs the ranks have chosen
    between them, on which they take turns: four ranks with ``set_device(rank // 2)`` choose two. Ranks that chose none
    by a number have one each, as far as there are as many.
    """
    known = [trace.gpu for _, trace in sorted(traces.items()) if trace.gpu is not None]
    if len(known) == ranks > 1:
        return known
    first, last = traces[min(traces)].gpu, traces[max(traces)].gpu
    chosen = gpus
    if len(traces) > 1 and first is not None and last is not None:
        chosen = min(gpus, abs(last - first) + 1)
        if chosen == 1:
            return [first] * ranks
    return [rank % ranks_of_node % chosen for rank in range(ranks)]


def with_memory_of_others(traces: Traces, gpus: Sequence[int], ranks_of_node: int) -> dict[int, Trace]:
    """Return the traces with the bytes that other ranks take of the same GPU. ``gpus``: of :func:`gpus_of_ranks`."""
    places = [(rank // ranks_of_node, gpu) for rank, gpu in enumerate(gpus)]
    if len(set(places)) == len(places):
        return dict(traces)
    taken = {rank: _taken(trace) for rank, trace in traces.items()}
    together: Counter[tuple[int, int]] = Counter()
    for rank, place in enumerate(places):
        together[place] += taken[stands_for(rank, sorted(traces))]
    return {rank: replace(trace, beside=together[places[rank]] - taken[rank]) for rank, trace in traces.items()}


def _taken(trace: Trace) -> int:
    """Return the device memory of a rank: its allocator's, and what is outside of it."""
    reserved = replay(trace, allocator.parse(trace.allocator_conf), UNLIMITED).peak_reserved
    return reserved + outside_bytes(outside_parts(trace, shipped()))
