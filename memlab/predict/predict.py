"""A plan's prediction: traces, replayed through the allocator of the hardware entry, as the record of a run."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from memlab.config import Config, from_dict
from memlab.launch.environment import describe_environment, fingerprint
from memlab.launch.job import Job
from memlab.machine import GIB, Machine
from memlab.plan import Plan
from memlab.predict import allocator, cache
from memlab.predict.breakdown import breakdown, curve
from memlab.predict.calibration import calibration_for
from memlab.predict.constants import outside_the_allocator
from memlab.predict.events import USE, Trace
from memlab.predict.host import host_peak
from memlab.predict.limits import unpredictable
from memlab.predict.ranks import stands_for
from memlab.predict.replay import Replay, replay
from memlab.predict.shadow.request import ShadowError
from memlab.predict.step_time import counts
from memlab.predict.timing import predict_timing
from memlab.predict.verdicts import DOES_NOT_FIT, EDGE, FITS
from memlab.record import PREDICTED, RankResult, Record
from memlab.summary import summarise

NOWHERE = Machine()
"""A prediction is for the machine in its hardware entry and depends on no other."""

LAG, AT_ONCE, AT_THE_NEXT_WAIT = 20, 0, 1 << 62
"""How many requests after the host freed it a block that a side stream used is free again. No replay can know: the two
ends bound it. The likely value is the one number here that was calibrated: on a single record, Llama-3-8B at ZeRO-3
with 2,001 tokens on 4 H200s (results/llama3_8b_zero3_4xH200_fresh), whose first forward, backward and step it gives
exactly."""

UNLIMITED = 1 << 62


def predict_one(job: Job, force: bool = False) -> Record:
    """Predict one job and write its record, unless its folder already holds what would come out again."""
    if not force and (found := job.finished(NOWHERE)) and _is_current(job.config, found):
        return found
    job.start(command=[])
    record = predict(job.plan)
    job.folder.finish(record)
    return record


def _is_current(config: Config, found: Record) -> bool:
    """Whether its step time comes from the calibration that holds now."""
    calibration = calibration_for(config)
    return found.steps.get("calibration") == (calibration.digest if calibration else None)


def predict(plan: Plan) -> Record:
    """The record that a measurement of ``plan`` on its hardware entry would write: memory, and the time of a step."""
    config = from_dict(plan.config)
    reasons = unpredictable(config)
    if reasons:
        return _record(plan, status="unsupported", reason="; ".join(reasons))
    began = time.perf_counter()
    try:
        traces = cache.traces(plan)
    except ShadowError as error:
        return _record(plan, status="failed", reason=f"the shadow run failed: {error}")
    traced = time.perf_counter() - began
    results = every_rank(config, plan.world_size, traces)
    failed = next((asdict(rank) for rank in results if rank.status != "ok"), None)
    timing = None if failed else predict_timing(config, traces)
    ranks = [asdict(replace(rank, step_seconds=[timing.seconds] if timing else [])) for rank in results]
    return _record(
        plan,
        status=failed["status"] if failed else "ok",
        reason=f"rank {failed['rank']}: {failed['reason']}" if failed else None,
        ranks=ranks,
        summary={
            **summarise(config, ranks, total_s=None),
            **(timing.summary() if timing else {}),
            "verdict": _worst(rank["verdict"] for rank in ranks),
        },
        steps=timing.steps() if timing else {},
        timing={
            **(timing.timing() if timing else {}),
            "trace_s": traced,
            "total_s": time.perf_counter() - began,
        },
    )


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


def every_rank(config: Config, world_size: int, traces: Mapping[int, Trace]) -> list[RankResult]:
    """The results of all ranks: those that were traced, and for each other the one that it is like."""
    results = {rank: one_rank(config, trace) for rank, trace in traces.items()}
    alike = [stands_for(rank, sorted(traces)) for rank in range(world_size)]
    return [
        results[rank] if rank == like else replace(results[like], rank=rank, device=f"cuda:{rank}", same_as_rank=like)
        for rank, like in enumerate(alike)
    ]


@dataclass(frozen=True)
class Estimate:
    """What decides whether a plan fits, without the record around it. Bytes of the rank that needs the most.

    ``used`` of the device, and of it ``free`` (``None``: its size is not known), both likely; ``host`` of the process.
    """

    verdict: str
    used: int
    free: int | None
    host: int


def estimate(config: Config, traces: Iterable[Trace], limited: bool = True) -> Estimate:
    """As :func:`predict`, without what only a reader of the record wants. ``limited``: by the memory of the device; if
    not, ``used`` is what the plan would need."""
    total, outside, capacity = _memory(config)
    options = allocator.parse(config.allocator.conf)
    traces = list(traces)
    replays = [_replays(trace, options, capacity if limited else UNLIMITED) for trace in traces]
    used = max(likely.peak_reserved for _, likely, _ in replays) + outside
    return Estimate(
        verdict=_worst(map(_verdict, replays)),
        used=used,
        free=total - used if total else None,
        host=max(host_peak(trace).process for trace in traces),
    )


def _worst(verdicts: Iterable[str]) -> str:
    return max(verdicts, key=(FITS, EDGE, DOES_NOT_FIT).index)


def _memory(config: Config) -> tuple[int | None, int, int]:
    """Bytes of one GPU: all of it, what is taken beside the allocator, and what the allocator can have."""
    hardware = config.hardware
    total = int(hardware.memory_gib * GIB) if hardware.memory_gib else None
    outside = outside_the_allocator(hardware.gpu, hardware.gpus)
    return total, outside, total - outside if total else UNLIMITED


def _replays(trace: Trace, options: allocator.Options, capacity: int, course: bool = False) -> tuple[Replay, ...]:
    """Side streams let memory go at once, when is likely, or at the next wait. Without side streams it is all one."""
    likely = replay(trace, options, capacity, LAG, course)
    if all(event[0] != USE for event in trace.events):
        return likely, likely, likely
    return replay(trace, options, capacity, AT_ONCE), likely, replay(trace, options, capacity, AT_THE_NEXT_WAIT)


def one_rank(config: Config, trace: Trace) -> RankResult:
    hardware = config.hardware
    total, outside, capacity = _memory(config)
    options = allocator.parse(config.allocator.conf)
    early, likely, late = _replays(trace, options, capacity, course=True)
    cold = replay(trace, options, capacity, LAG, cold=True)
    host = host_peak(trace)
    return RankResult(
        rank=trace.rank,
        device=f"cuda:{trace.rank}",
        device_name=hardware.gpu,
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
        peak_reserved_range_bytes=_range((early, likely, late)),
        cold_peak_allocated_bytes=cold.peak_allocated,
        cold_peak_reserved_bytes=cold.peak_reserved,
        verdict=_verdict((early, likely, late)),
        breakdown=breakdown(trace, likely),
        curve=None if likely.oom else curve(likely),
        work=counts(trace),
        model_flops_per_step=_model_flops(config, trace),
    )


def _model_flops(config: Config, trace: Trace) -> float:
    by_token, by_pair = trace.model_flops
    samples, tokens = config.batch.micro * config.batch.accumulation, config.seq_len.tokens
    return samples * (by_token * tokens + by_pair * tokens**2)


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
