"""What a command takes where memory is plenty: its libraries' workspaces, which it can do without."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

from memlab.core.config import Config
from memlab.predict.allocator import Options
from memlab.predict.memory.rank_results import rank_results
from memlab.predict.time.calibrate import Calibration
from memlab.predict.trace.events import Event, Workspace
from memlab.predict.trace.trace_format import Trace

WORKSPACES = "workspaces"
"""``choice`` of their range in a record: libraries choose by the memory that is free."""


def with_workspaces(
    config: Config, traces: Mapping[int, Trace], need: Mapping[str, int], calibration: Calibration
) -> dict[str, list[int]] | None:
    """Return for each key of ``need`` what the command needs and what it takes at most; ``None`` without workspaces.

    ``traces``: of the ranks. ``need``: keys of :class:`RankResult` -> bytes of the rank with the most.
    """
    sizes = [[each.nbytes for each in trace.events if isinstance(each, Workspace)] for trace in traces.values()]
    if not any(sizes):
        return None
    taking = {rank: replace(trace, events=[_taken(event) for event in trace.events]) for rank, trace in traces.items()}
    (results,) = rank_results([config], [taking], calibration)
    limit = max(result.device_total_bytes for result in results)
    found = {}
    for key, nbytes in need.items():
        most = limit if any(each.oom for each in results) else max(getattr(each, key) for each in results)
        apart = 0 if key == "peak_allocated_bytes" else max(map(_apart, sizes))
        found[key] = [nbytes, max(nbytes, most, min(nbytes + apart, limit))]
    return found


def _taken(event: Event) -> Event:
    return event._replace(is_taken=True) if isinstance(event, Workspace) else event


def _apart(sizes: list[int]) -> int:
    """Return the reserved bytes if each workspace that is larger than all before finds no free block."""
    before = accumulate(sizes, max, initial=0)
    return sum(size + Options().large_segment_bytes for size, most in zip(sizes, before, strict=False) if size > most)
