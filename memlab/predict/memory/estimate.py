"""Memory of each rank: its trace, replayed through an allocator with the capacity of the hardware entry's GPU."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from memlab.core.config import Config
from memlab.core.plan import Plan
from memlab.core.record import PREDICTED, RankResult
from memlab.core.sizes import GIB, UNLIMITED, in_gib
from memlab.predict.constants import outside_the_allocator
from memlab.predict.memory import allocator
from memlab.predict.memory.breakdown import breakdown, curve
from memlab.predict.memory.fit_probability import probability, shipped_ratios
from memlab.predict.memory.host import host_peak
from memlab.predict.memory.release_delay import furthest_ahead, with_lags
from memlab.predict.memory.replay import Replay, replay, replay_points
from memlab.predict.memory.verdicts import DOES_NOT_FIT, EDGE, FITS, worst
from memlab.predict.time.step_time import counts, has_clocks
from memlab.predict.trace.events import RecordStream
from memlab.predict.trace.launch_order import in_one_launch
from memlab.predict.trace.ranks import stands_for
from memlab.predict.trace.trace_format import Trace

AT_ONCE, AT_THE_NEXT_WAIT = 0, 1 << 62
"""Shortest and longest release delay of a block that a side stream used: how many requests after the host freed the
block the allocator can reuse it."""

FAST_HOST = 0.5
"""Host time of a host that runs far ahead of its GPU, as a share of the calibrated host's time. Hosts differ that
much."""

ROOMY = 0.5
"""Share of the allocator's capacity. If the likely peak is below it, the verdict skips the replays with long release
delays, unless a record needs their range. In results/, with up to four GPUs, long release delays raise reserved memory
by 14 % at the most (the ranges in docs/accuracy.json)."""


def every_rank(plans: Sequence[Plan], traces: Sequence[Mapping[int, Trace]]) -> list[list[RankResult]]:
    """Return the results of all ranks for each point of a launch.

    ``traces``: for each point rank -> trace, as if the point ran alone. A rank without a trace gets a copy of the
    result of the traced rank that it equals. Points after an out-of-memory are left out.
    """
    configs = [plan.config for plan in plans]
    total, _, capacity = _memory(configs[0])
    ranks = {rank: _Rank(configs[0], [point[rank] for point in traces], capacity, course=True) for rank in traces[0]}
    results = {rank: _results(configs, one, [point[rank] for point in traces]) for rank, one in ranks.items()}
    if len(plans) == 1 and total is not None:
        tightest = max(ranks, key=lambda rank: ranks[rank].tightness)
        results[tightest][0].fit_probability, _ = probability(ranks[tightest].fits, shipped_ratios())
    alike = [stands_for(rank, sorted(results)) for rank in range(plans[0].world_size)]
    reached = min(len(points) for points in results.values())
    return [
        [
            results[like][point]
            if rank == like
            else replace(results[like][point], rank=rank, device=f"cuda:{rank}", same_as_rank=like)
            for rank, like in enumerate(alike)
        ]
        for point in range(reached)
    ]


def _results(configs: Sequence[Config], rank: "_Rank", points: Sequence[Trace]) -> list[RankResult]:
    """Return one rank's result for each point that the launch reaches. ``points``: the trace of each point, as if the
    point ran alone."""
    results = [_rank_result(configs[number], rank, number, points[number]) for number in range(len(rank.likely))]
    if len(configs) == 1:
        cold = rank.cold()
        results[0].cold_peak_allocated_bytes = cold.peak_allocated
        results[0].cold_peak_reserved_bytes = cold.peak_reserved
    return results


@dataclass(frozen=True)
class Estimate:
    """Verdict and memory of a plan, without the record. All figures are bytes of the rank that needs the most.

    ``used`` and ``free``: device memory, the likely values; ``free`` is ``None`` if the size of the device is unknown.
    ``host``: memory of the process. ``held``: phase -> device memory that live tensors need, without fragmentation.
    """

    verdict: str
    used: int
    free: int | None
    host: int
    held: Mapping[str, int]


def estimate(config: Config, traces: Iterable[Trace], limited: bool = True) -> Estimate:
    """Predict the verdict and the memory of one point, faster than :func:`predict`, which fills a whole record.

    ``limited``: whether the memory of the device limits the allocator. If not, ``used`` is what the plan would need.
    """
    total, outside, capacity = _memory(config)
    traces = list(traces)
    ranks = [_Rank(config, [trace], capacity if limited else UNLIMITED) for trace in traces]
    replays = [rank.likely[0] for rank in ranks]
    used = max(replay.peak_reserved for replay in replays) + outside
    return Estimate(
        verdict=worst(rank.verdict(0) for rank in ranks) if limited else FITS,
        used=used,
        free=total - used if total else None,
        host=max(host_peak(trace).process for trace in traces),
        held=_held(replays, outside),
    )


def _held(replays: Sequence[Replay], outside: int) -> dict[str, int]:
    phases = {name for replay in replays for name in replay.phases}
    return {
        name: max(replay.phases[name].peak_allocated_bytes for replay in replays if name in replay.phases) + outside
        for name in sorted(phases)
    }


def _memory(config: Config) -> tuple[int | None, int, int]:
    """Return three sizes of one GPU in bytes: its whole memory, the memory used outside the allocator, and the
    allocator's capacity. The capacity is the whole less the outside, or ``per_process_memory_fraction`` of the whole
    if that is less."""
    hardware = config.hardware
    outside = outside_the_allocator(hardware.gpu, hardware.gpus)
    if not hardware.memory_gib:
        return None, outside, UNLIMITED
    total = int(hardware.memory_gib * GIB)
    allowed = int(total * allocator.parse(config.allocator.conf).memory_fraction)
    return total, outside, min(total - outside, allowed)


class _Rank:
    """One rank's requests in a launch of ``points``, replayed through an allocator of ``capacity`` bytes.

    ``trace`` holds the requests with the release delays of blocks that side streams used. If the hardware entry lacks
    the figures to compute these delays, such a block is free at once on one GPU, which waits for no other rank, and at
    the host's next wait on several GPUs.
    """

    def __init__(self, config: Config, points: Sequence[Trace], capacity: int, course: bool = False):
        self._config, self._points, self._capacity, self._course = config, points, capacity, course
        self._options = allocator.parse(config.allocator.conf)
        self._is_cold = config.measure.protocol == "cold"
        self._plain = self.trace = in_one_launch(points)
        self._has_side_streams = any(isinstance(event, RecordStream) for event in self._plain.events)
        self._has_lags = self._has_side_streams and has_clocks(config, points)
        self._lag = AT_ONCE if self._has_lags or config.hardware.world_size == 1 else AT_THE_NEXT_WAIT
        if self._has_lags:
            self.trace = self._with_lags(furthest_ahead(config))

    @cached_property
    def likely(self) -> list[Replay]:
        """The replays with the likely release delays, one for each point that the launch reaches."""
        return replay_points(self.trace, self._options, self._capacity, self._lag, self._course, self._is_cold)

    @cached_property
    def _least(self) -> list[list[Replay]]:
        """The replays that need the least memory: every block is free at once. Empty without side streams."""
        return [self._replayed(self._plain, AT_ONCE)] if self._has_side_streams else []

    @cached_property
    def _most(self) -> list[list[Replay]]:
        """The replays that need the most memory: blocks become free at the host's next wait only, or the host runs far
        ahead of the GPU. Empty without side streams."""
        if not self._has_side_streams:
            return []
        ahead = [self._replayed(self._with_lags(FAST_HOST), AT_ONCE)] if self._has_lags else []
        return [self._replayed(self._plain, AT_THE_NEXT_WAIT), *ahead]

    def verdict(self, point: int) -> str:
        """Return the verdict on a point. EDGE: whether the point fits depends on the release delays, or the allocator
        has to give cached memory back to the device during the run."""
        likely = self.likely[point]
        if likely.oom:
            return EDGE if any(not _at(replays, point).oom for replays in self._least) else DOES_NOT_FIT
        if not self._course and _reserved(likely) < ROOMY * self._capacity:
            return FITS
        others = [_at(replays, point) for replays in self._most] if not likely.num_alloc_retries else []
        strained = any(replay.oom or replay.num_alloc_retries for replay in (likely, *others))
        return EDGE if strained else FITS

    def reserved_range(self, point: int) -> list[int]:
        """Return the lowest and the highest peak of reserved memory that a point can have, in bytes."""
        replays = [self.likely[point], *(_at(each, point) for each in (*self._least, *self._most))]
        reserved = [replay.peak_reserved for replay in replays]
        return [min(reserved), max(reserved)]

    @property
    def tightness(self) -> tuple[bool, bool, int]:
        """Sort key: the greater, the less room the first point has. Out of memory comes first, because such a replay
        ended early and its peak is too low to compare."""
        likely = self.likely[0]
        return likely.oom is not None, likely.num_alloc_retries > 0, likely.peak_reserved

    def cold(self) -> Replay:
        """Return the likely replay of the first point in a plain training (``measure.protocol=cold``)."""
        if self._is_cold:
            return self.likely[0]
        return replay(self.trace, self._options, self._capacity, self._lag, cold=True)

    def fits(self, ratio: float) -> bool:
        """Return whether ``ratio`` times the predicted memory fits. The replay divides the capacity by ``ratio``
        instead, which is the same."""
        likely = self.likely[0]
        if likely.oom and ratio >= 1:
            return False
        if not likely.oom and not likely.num_alloc_retries and _reserved(likely) * ratio <= self._capacity:
            return True
        lesser = replay(self.trace, self._options, int(self._capacity / ratio), self._lag, cold=self._is_cold)
        return lesser.oom is None

    def _with_lags(self, host: float) -> Trace:
        return in_one_launch([with_lags(point, self._config, host) for point in self._points])

    def _replayed(self, trace: Trace, lag: int) -> list[Replay]:
        return replay_points(trace, self._options, self._capacity, lag, cold=self._is_cold)


def _reserved(replay: Replay) -> int:
    """Return the highest reserved memory of the whole run, including the phases before the first step."""
    return max(replay.peak_reserved, *(phase.peak_reserved_bytes for phase in replay.phases.values()))


def _at(replays: Sequence[Replay], point: int) -> Replay:
    """Return the replay of a point, or the last replay if the launch ended before that point."""
    return replays[min(point, len(replays) - 1)]


def _rank_result(config: Config, rank: _Rank, number: int, point: Trace) -> RankResult:
    """Build the result of one rank at one point. ``number``: the point's index in the launch; ``point``: its trace."""
    trace, likely = rank.trace, rank.likely[number]
    total, outside, capacity = _memory(config)
    host = host_peak(trace)
    return RankResult(
        rank=trace.rank,
        device=f"cuda:{trace.rank}",
        device_name=config.hardware.gpu,
        memory_source=PREDICTED,
        status="gpu_oom" if likely.oom else "ok",
        reason=_reason(likely, capacity) if likely.oom else None,
        device_total_bytes=total,
        peak_allocated_bytes=likely.peak_allocated,
        peak_active_bytes=likely.peak_active,
        peak_reserved_bytes=likely.peak_reserved,
        device_used_bytes=likely.peak_reserved + outside,
        process_used_bytes=likely.peak_reserved + outside,
        host_peak_bytes=host.process,
        host_pinned_bytes=host.pinned,
        num_alloc_retries=likely.num_alloc_retries,
        num_ooms=int(bool(likely.oom)),
        phases=likely.phases,
        parameters=trace.parameters,
        trainable_parameters=trace.trainable_parameters,
        oom=likely.oom,
        timing={"trace_cpu_s": point.seconds},
        peak_reserved_range_bytes=rank.reserved_range(number),
        verdict=rank.verdict(number),
        breakdown=breakdown(trace, likely),
        curve=curve(likely) if likely.course and not likely.oom else None,
        work=counts(point) if point.work else None,
        model_flops_per_step=_model_flops(config, point) if point.model_flops else None,
        unknown=point.unknown,
    )


def _model_flops(config: Config, trace: Trace) -> float:
    by_token, by_pair = trace.model_flops
    samples, tokens = config.batch.micro * config.batch.accumulation, config.seq_len.tokens
    return samples * (by_token * tokens + by_pair * tokens**2)


def _reason(likely: Replay, capacity: int) -> str:
    requested = likely.oom["requested_bytes"]
    return (
        f"in {likely.oom['phase'] or 'no phase'}: {in_gib(requested)} more are needed beside "
        f"{in_gib(likely.peak_allocated)} allocated, and the allocator has {in_gib(capacity)}"
    )
