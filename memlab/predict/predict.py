"""A plan's prediction: traces, replayed through the allocator of the hardware entry, as the record of a run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from memlab.config import Config, from_dict
from memlab.launch.environment import describe_environment, fingerprint
from memlab.launch.job import Job
from memlab.machine import GIB, Machine
from memlab.plan import Plan, shape_of
from memlab.predict import allocator, cache
from memlab.predict.breakdown import breakdown, curve
from memlab.predict.constants import outside_the_allocator
from memlab.predict.events import USE, Trace
from memlab.predict.host import host_peak
from memlab.predict.launches import in_one_launch
from memlab.predict.limits import unpredictable
from memlab.predict.odds import probability, shipped_ratios
from memlab.predict.ranks import stands_for, traced_ranks
from memlab.predict.replay import Replay, replay, replay_points
from memlab.predict.shadow.request import ShadowError
from memlab.record import PREDICTED, RankResult, Record
from memlab.summary import summarise

NOWHERE = Machine()
"""A prediction is for the machine in its hardware entry and depends on no other."""

AT_ONCE, AT_THE_NEXT_WAIT = 0, 1 << 62
"""When a block that a side stream used is free again, in requests after the host freed it: the two ends of what can
be. A rank that is alone is waited for by nobody, so its side streams keep up: at once. Of several ranks, one that runs
ahead has its side streams wait in their collectives for the others, until the host itself waits for them; what decides
is the highest rank, so that is what is predicted. Nothing is calibrated here."""

UNLIMITED = 1 << 62
FITS, EDGE, DOES_NOT_FIT = "fits", "edge", "does_not_fit"


def predict_one(job: Job, force: bool = False) -> Record:
    """Predict one job and write its record, unless its folder already holds what would come out again."""
    if not force and (found := job.finished(NOWHERE)):
        return found
    job.start(command=[])
    record = predict(job.plan)
    job.folder.finish(record)
    return record


def predict(plan: Plan) -> Record:
    """The record that a measurement of ``plan`` on its hardware entry would write, as far as memory goes."""
    return predict_launch([plan])[0]


def predict_launch(plans: Sequence[Plan]) -> list[Record]:
    """The records of plans that differ in shape alone and are measured one after another in one launch.

    What a point leaves in the allocator is there when the next one begins, so their order matters. An out-of-memory
    ends the launch: the plans behind it have no record.
    """
    config = from_dict(plans[0].config)
    reasons = unpredictable(config)
    if reasons:
        return [_record(plan, status="unsupported", reason="; ".join(reasons)) for plan in plans]
    began = time.perf_counter()
    try:
        traces = _traces(plans)
    except ShadowError as error:
        return [_record(plan, status="failed", reason=f"the shadow run failed: {error}") for plan in plans]
    traced = time.perf_counter() - began
    points = every_rank(plans, traces)
    timing = {"trace_s": traced, "total_s": time.perf_counter() - began}  # of the whole launch
    shapes = [list(shape_of(from_dict(plan.config))) for plan in plans]
    return [
        _point_record(plan, [asdict(rank) for rank in ranks], timing, shapes[:index])
        for index, (plan, ranks) in enumerate(zip(plans, points, strict=False))
    ]


def _traces(plans: Sequence[Plan]) -> dict[int, Trace]:
    """For each traced rank the trace of the whole launch."""
    ranks = traced_ranks(plans[0])
    shapes = [shape_of(from_dict(plan.config)) for plan in plans]
    cache.prepare(plans[0], ranks, shapes)
    points = [cache.traces(plans[0], ranks, *shape) for shape in shapes]
    return {rank: in_one_launch([traces[rank] for traces in points]) for rank in ranks}


def _point_record(plan: Plan, ranks: list[dict[str, Any]], timing: dict[str, float], before: list[list[int]]) -> Record:
    failed = next((rank for rank in ranks if rank["status"] != "ok"), None)
    verdicts = [rank["verdict"] for rank in ranks]
    return _record(
        plan,
        status=failed["status"] if failed else "ok",
        reason=f"rank {failed['rank']}: {failed['reason']}" if failed else None,
        ranks=ranks,
        summary={
            **summarise(from_dict(plan.config), ranks, total_s=None),
            "verdict": next(verdict for verdict in (DOES_NOT_FIT, EDGE, FITS) if verdict in verdicts),
            **_odds(ranks),
        },
        timing=timing,
        isolation="shared" if before else "fresh",
        before_in_launch=before,
    )


def _odds(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The probability that all ranks fit, which is that of the fullest, and how many configurations it rests on."""
    known = [rank["fit_probability"] for rank in ranks if rank["fit_probability"] is not None]
    return {"fit_probability": min(known), "fit_probability_from": len(shipped_ratios())} if known else {}


def _record(plan: Plan, **outcome) -> Record:
    return Record(
        run_id=plan.run_id,
        source="predicted",
        config=plan.config,
        choices=plan.choices,
        fingerprint=fingerprint(plan, NOWHERE),
        environment=describe_environment(plan, NOWHERE),
        **outcome,
    )


def every_rank(plans: Sequence[Plan], traces: Mapping[int, Trace]) -> list[list[RankResult]]:
    """For each point the results of all ranks: those that were traced, and for each other the one that it is like."""
    configs = [from_dict(plan.config) for plan in plans]
    results = {rank: one_rank(configs, trace) for rank, trace in traces.items()}
    alike = [stands_for(rank, sorted(traces)) for rank in range(plans[0].world_size)]
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


def one_rank(configs: Sequence[Config], trace: Trace) -> list[RankResult]:
    """A result for each point that the launch reached."""
    config = configs[0]
    total, _, capacity = _memory(config)
    options = allocator.parse(config.allocator.conf)
    is_cold = config.measure.protocol == "cold"
    pairs = _replays(trace, options, capacity, is_cold)
    results = [_rank_result(config, trace, pair) for pair in pairs]
    if len(configs) == 1:
        likely = pairs[0][0]
        cold = likely if is_cold else replay(trace, options, capacity, _when(trace), cold=True)
        results[0].cold_peak_allocated_bytes = cold.peak_allocated
        results[0].cold_peak_reserved_bytes = cold.peak_reserved
        if total is not None:
            fits = partial(_fits, trace, options, capacity, is_cold, likely)
            results[0].fit_probability, _ = probability(fits, shipped_ratios())
    return results


def _memory(config: Config) -> tuple[int | None, int, int]:
    """Bytes of one GPU: all of it, what is taken beside the allocator, and what the allocator can have."""
    hardware = config.hardware
    total = int(hardware.memory_gib * GIB) if hardware.memory_gib else None
    outside = outside_the_allocator(hardware.gpu, hardware.gpus)
    return total, outside, total - outside if total else UNLIMITED


def _replays(trace: Trace, options: allocator.Options, capacity: int, cold: bool) -> list[tuple[Replay, Replay]]:
    """For each point what is likely, and the other end of what can be."""
    when = _when(trace)
    likely = replay_points(trace, options, capacity, when, course=True, cold=cold)
    if all(event[0] != USE for event in trace.events):  # without side streams it is all one
        return [(each, each) for each in likely]
    other = AT_ONCE if when == AT_THE_NEXT_WAIT else AT_THE_NEXT_WAIT
    return list(zip(likely, replay_points(trace, options, capacity, other, cold=cold), strict=False))


def _when(trace: Trace) -> int:
    return AT_ONCE if trace.world_size == 1 else AT_THE_NEXT_WAIT


def _fits(trace: Trace, options: allocator.Options, capacity: int, cold: bool, likely: Replay, ratio: float) -> bool:
    """Whether there is room for ``ratio`` times what is needed: the same as for all of it in so much less."""
    if likely.oom and ratio >= 1:
        return False
    reserved = max(likely.peak_reserved, *(phase.peak_reserved_bytes for phase in likely.phases.values()))
    if not likely.oom and not likely.num_alloc_retries and reserved * ratio <= capacity:
        return True
    return replay(trace, options, int(capacity / ratio), _when(trace), cold=cold).oom is None


def _rank_result(config: Config, trace: Trace, replays: tuple[Replay, Replay]) -> RankResult:
    """``replays``: what is likely, and the other end."""
    likely = replays[0]
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
        timing={"trace_s": trace.seconds},
        peak_reserved_range_bytes=_range(replays),
        verdict=_verdict(replays),
        breakdown=breakdown(trace, likely),
        curve=curve(likely) if likely.course and not likely.oom else None,
    )


def _range(replays: Sequence[Replay]) -> list[int]:
    reserved = [replay.peak_reserved for replay in replays]
    return [min(reserved), max(reserved)]


def _verdict(replays: Sequence[Replay]) -> str:
    """At the edge: it depends on when side streams let memory go, or on giving cached memory back in between."""
    if all(replay.oom for replay in replays):
        return DOES_NOT_FIT
    return EDGE if any(replay.oom or replay.num_alloc_retries for replay in replays) else FITS


def _reason(likely: Replay, capacity: int) -> str:
    requested = likely.oom["requested_bytes"]
    return (
        f"in {likely.oom['phase'] or 'no phase'}: {requested / GIB:.2f} GiB more are needed beside "
        f"{likely.peak_allocated / GIB:.2f} GiB allocated, and the allocator has {capacity / GIB:.2f} GiB"
    )
