"""What a command takes where memory is plenty: its libraries' workspaces, which it can do without."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from memlab.core.config import Config
from memlab.core.sizes import UNLIMITED
from memlab.prediction.memory.rank_replays import RankReplays
from memlab.prediction.memory.rank_results import gpu_memory
from memlab.prediction.time.calibrate import Calibration
from memlab.simulator.allocator import Options
from memlab.simulator.trace.events import Workspace, of_kinds
from memlab.simulator.trace.trace_format import Trace, Traces

WORKSPACES = "workspaces"
"""``choice`` of their range in a record: libraries choose by the memory that is free."""


def with_workspaces(
    config: Config, traces: Traces, need: Mapping[str, int], taking: Sequence[Mapping[str, int]]
) -> dict[str, list[int]]:
    """Return for each key of ``need`` what the command needs and what it takes at most.

    ``traces``: of the ranks. ``need``: keys of :class:`RankResult` -> bytes of the rank with the most. ``taking``: what
    :func:`figures_with_workspaces` returned.
    """
    limit = gpu_memory(config, traces.values()).total or UNLIMITED
    apart = max(_apart([each.nbytes for _, each in of_kinds(trace.events, Workspace)]) for trace in traces.values())
    # Workspaces that find no free block are reserved, but in no other allocated peak than those of ``taking``.
    at_most = {key: min(nbytes + apart, limit) for key, nbytes in need.items()} | {"peak_allocated_bytes": 0}
    figures = [need, at_most, *taking]
    return {key: [nbytes, max(each[key] for each in figures)] for key, nbytes in need.items()}


def figures_with_workspaces(config: Config, traces: Traces, calibration: Calibration) -> list[dict[str, int]]:
    """Return the figures of ranks that take their workspaces; none where no rank has any."""
    if not any(any(of_kinds(trace.events, Workspace)) for trace in traces.values()):
        return []
    return [_figures_with_workspaces(config, trace, calibration) for trace in traces.values()]


def _figures_with_workspaces(config: Config, trace: Trace, calibration: Calibration) -> dict[str, int]:
    """Return the figures of a rank that takes its workspaces: its whole GPU, where there is no room for them."""
    gpu = gpu_memory(config, [trace])
    events = trace.events.copy()
    for index, workspace in of_kinds(trace.events, Workspace):
        events[index] = workspace._replace(is_taken=True)
    replay = RankReplays(config, [replace(trace, events=events)], gpu.capacity, calibration).likely[0]
    figures = {
        "peak_allocated_bytes": replay.peak_allocated,
        "peak_reserved_bytes": replay.peak_reserved,
        "device_used_bytes": replay.peak_reserved + gpu.outside,
    }
    return dict.fromkeys(figures, gpu.total or UNLIMITED) if replay.oom else figures


def _apart(sizes: list[int]) -> int:
    """Return the reserved bytes if each workspace that is larger than all before finds no free block."""
    before = accumulate(sizes, max, initial=0)
    return sum(size + Options().large_segment_bytes for size, most in zip(sizes, before, strict=False) if size > most)
