"""Memory of the ranks: their traces, replayed through the allocator with the capacity of the hardware entry."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from memlab.config import Config, from_dict
from memlab.machine import GIB
from memlab.plan import Plan
from memlab.predict import allocator
from memlab.predict.breakdown import breakdown, curve
from memlab.predict.constants import outside_the_allocator
from memlab.predict.events import USE, Trace
from memlab.predict.host import host_peak
from memlab.predict.lags import furthest_ahead, with_lags
from memlab.predict.launches import in_one_launch
from memlab.predict.odds import probability, shipped_ratios
from memlab.predict.ranks import stands_for
from memlab.predict.replay import Replay, replay, replay_points
from memlab.predict.step_time import counts, has_clocks
from memlab.predict.verdicts import DOES_NOT_FIT, EDGE, FITS, worst
from memlab.record import PREDICTED, RankResult

AT_ONCE, AT_THE_NEXT_WAIT = 0, 1 << 62
"""When a block that a side stream used is free again: the two ends of what can be, in requests after the host freed
it."""

FAST_HOST = 0.5
"""As a share of what the calibrated host takes, what one takes that is far ahead of its GPU: hosts differ that much."""

ROOMY = 0.5
"""Of what the allocator can have: a plan that likely needs less is not asked when its side streams let go, unless there
is a record to fill. That raises what is reserved by 14 % at the most in results/, with up to four GPUs (the ranges in
docs/accuracy.json)."""

UNLIMITED = 1 << 62


def every_rank(plans: Sequence[Plan], traces: Sequence[Mapping[int, Trace]]) -> list[list[RankResult]]:
    """For each point of a launch the results of all ranks: those that were traced, and for each other the one that it
    is like. ``traces`` are those of each point, as if it ran alone. A point that the launch does not reach is left out.
    """
    configs = [from_dict(plan.config) for plan in plans]
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
    """A result for each point that the launch reached. ``points``: the trace of each, as if it ran alone."""
    results = [_rank_result(configs[number], rank, number, points[number]) for number in range(len(rank.likely))]
    if len(configs) == 1:
        cold = rank.cold()
        results[0].cold_peak_allocated_bytes = cold.peak_allocated
        results[0].cold_peak_reserved_bytes = cold.peak_reserved
    return results


@dataclass(frozen=True)
class Estimate:
    """What decides whether a plan fits, without the record around it. Bytes of the rank that needs the most.

    ``used`` of the device, and of it ``free`` (``None``: its size is not known), both likely; ``host`` of the process.
    ``held``: what tensors need of the device in each phase, at the least; fragmentation comes on top.
    """

    verdict: str
    used: int
    free: int | None
    host: int
    held: Mapping[str, int]


def estimate(config: Config, traces: Iterable[Trace], limited: bool = True) -> Estimate:
    """As :func:`predict`, without what only a reader of the record wants. ``limited``: by the memory of the device; if
    not, ``used`` is what the plan would need."""
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
    """Bytes of one GPU: all of it, what is taken beside the allocator, and what the allocator can have: the rest, or
    its share of all (``per_process_memory_fraction``) where that is less."""
    hardware = config.hardware
    outside = outside_the_allocator(hardware.gpu, hardware.gpus)
    if not hardware.memory_gib:
        return None, outside, UNLIMITED
    total = int(hardware.memory_gib * GIB)
    allowed = int(total * allocator.parse(config.allocator.conf).memory_fraction)
    return total, outside, min(total - outside, allowed)


class _Rank:
    """A rank's requests in a launch of ``points``, and what an allocator of ``capacity`` bytes makes of them.

    ``trace`` has them with the time at which side streams let blocks go in it, as far as that can be told; without the
    hardware entry's figures, blocks of one GPU are free at once, since nobody keeps it waiting, and those of several at
    the next wait.
    """

    def __init__(self, config: Config, points: Sequence[Trace], capacity: int, course: bool = False):
        self._config, self._points, self._capacity, self._course = config, points, capacity, course
        self._options = allocator.parse(config.allocator.conf)
        self._is_cold = config.measure.protocol == "cold"
        self._plain = self.trace = in_one_launch(points)
        self._has_side_streams = any(event[0] == USE for event in self._plain.events)
        self._has_lags = self._has_side_streams and has_clocks(config, points)
        self._lag = AT_ONCE if self._has_lags or config.hardware.world_size == 1 else AT_THE_NEXT_WAIT
        if self._has_lags:
            self.trace = self._with_lags(furthest_ahead(config))

    @cached_property
    def likely(self) -> list[Replay]:
        """For each point that the launch reaches."""
        return replay_points(self.trace, self._options, self._capacity, self._lag, self._course, self._is_cold)

    @cached_property
    def _least(self) -> list[list[Replay]]:
        """Where side streams let go of everything at once: the least that can be needed."""
        return [self._replayed(self._plain, AT_ONCE)] if self._has_side_streams else []

    @cached_property
    def _most(self) -> list[list[Replay]]:
        """Where they let go of nothing before the host waits for them, and where it is far ahead of them: the most."""
        if not self._has_side_streams:
            return []
        ahead = [self._replayed(self._with_lags(FAST_HOST), AT_ONCE)] if self._has_lags else []
        return [self._replayed(self._plain, AT_THE_NEXT_WAIT), *ahead]

    def verdict(self, point: int) -> str:
        """At the edge: it depends on when side streams let memory go, or on giving cached memory back in between."""
        likely = self.likely[point]
        if likely.oom:
            return EDGE if any(not _at(replays, point).oom for replays in self._least) else DOES_NOT_FIT
        if not self._course and _reserved(likely) < ROOMY * self._capacity:
            return FITS
        others = [_at(replays, point) for replays in self._most] if not likely.num_alloc_retries else []
        strained = any(replay.oom or replay.num_alloc_retries for replay in (likely, *others))
        return EDGE if strained else FITS

    def reserved_range(self, point: int) -> list[int]:
        """Bytes: the least and the most that a point's peak can be."""
        replays = [self.likely[point], *(_at(each, point) for each in (*self._least, *self._most))]
        reserved = [replay.peak_reserved for replay in replays]
        return [min(reserved), max(reserved)]

    @property
    def tightness(self) -> tuple[bool, bool, int]:
        """The greater, the less room the first point has. A replay that ran out of memory ended early."""
        likely = self.likely[0]
        return likely.oom is not None, likely.num_alloc_retries > 0, likely.peak_reserved

    def cold(self) -> Replay:
        """What is likely in a plain training."""
        if self._is_cold:
            return self.likely[0]
        return replay(self.trace, self._options, self._capacity, self._lag, cold=True)

    def fits(self, ratio: float) -> bool:
        """Whether there is room for ``ratio`` times what is needed: the same as for all of it in so much less."""
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
    """The most at any time: before the first step, too."""
    return max(replay.peak_reserved, *(phase.peak_reserved_bytes for phase in replay.phases.values()))


def _at(replays: Sequence[Replay], point: int) -> Replay:
    """Of a point; of the one that ended its launch where that came first."""
    return replays[min(point, len(replays) - 1)]


def _rank_result(config: Config, rank: _Rank, number: int, point: Trace) -> RankResult:
    """``number``: which of the launch's points it is; ``point`` its trace."""
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
        f"in {likely.oom['phase'] or 'no phase'}: {requested / GIB:.2f} GiB more are needed beside "
        f"{likely.peak_allocated / GIB:.2f} GiB allocated, and the allocator has {capacity / GIB:.2f} GiB"
    )
