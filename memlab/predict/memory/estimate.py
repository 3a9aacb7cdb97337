"""Estimate of one point: its verdict and the memory that it needs, without a record."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from memlab.core.config import Config
from memlab.core.sizes import UNLIMITED
from memlab.predict.memory.gpu_memory import gpu_memory
from memlab.predict.memory.host import host_peak
from memlab.predict.memory.rank_replays import RankReplays
from memlab.predict.memory.replay import Replay
from memlab.predict.memory.verdicts import FITS, worst
from memlab.predict.time.calibration import Calibration
from memlab.predict.trace.trace_format import Trace


@dataclass(frozen=True)
class Estimate:
    """Verdict and memory of a plan, without the record. All numbers are bytes of the rank that needs the most.

    ``used`` and ``free``: device memory, the likely values; ``free`` is ``None`` if the size of the device is unknown.
    ``host``: memory of the process. ``held``: phase -> device memory that live tensors need, without fragmentation.
    """

    verdict: str
    used: int
    free: int | None
    host: int
    held: Mapping[str, int]


def estimate(config: Config, traces: Iterable[Trace], calibration: Calibration, limited: bool = True) -> Estimate:
    """Predict the verdict and the memory of one point, faster than a whole record.

    ``calibration``: gives the release delays of blocks that side streams used.
    ``limited``: whether the memory of the device limits the allocator. If not, ``used`` is what the plan would need.
    """
    traces = list(traces)
    gpu = gpu_memory(config, traces)
    capacity = gpu.capacity if limited else UNLIMITED
    ranks = [RankReplays(config, [trace], capacity, calibration) for trace in traces]
    replays = [rank.likely[0] for rank in ranks]
    used = max(replay.peak_reserved for replay in replays) + gpu.outside
    return Estimate(
        verdict=worst(rank.verdict(0) for rank in ranks) if limited else FITS,
        used=used,
        free=gpu.total - used if gpu.total else None,
        host=max(host_peak(trace).process for trace in traces),
        held=_held(replays, gpu.outside),
    )


def needs(config: Config, traces: Sequence[Trace], calibration: Calibration) -> Estimate:
    """Return the verdict on the device, and the memory that the point would need on a device of any size."""
    verdict = estimate(config, traces, calibration).verdict
    return replace(estimate(config, traces, calibration, limited=False), verdict=verdict)


def _held(replays: Sequence[Replay], outside: int) -> dict[str, int]:
    phases = {name for replay in replays for name in replay.phases}
    return {
        name: max(replay.phases[name].peak_allocated_bytes for replay in replays if name in replay.phases) + outside
        for name in sorted(phases)
    }
