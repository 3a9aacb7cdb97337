"""Results of all ranks for the record of a prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from memlab.core.config import Config
from memlab.core.record import PREDICTED, RankResult
from memlab.core.sizes import in_gib
from memlab.core.unknown_figures import GPU_MODEL
from memlab.predict.constants import unknown_model
from memlab.predict.memory.breakdown import breakdown, curve
from memlab.predict.memory.command_memory import command_memory, out_of_memory
from memlab.predict.memory.fit_probability import probability, shipped_ratios
from memlab.predict.memory.gpu_memory import GpuMemory, gpu_memory
from memlab.predict.memory.host import host_peak
from memlab.predict.memory.outside import outside_parts
from memlab.predict.memory.rank_replays import RankReplays
from memlab.predict.memory.replay import Replay
from memlab.predict.outside.fit import sizes_from
from memlab.predict.time.calibration import Calibration
from memlab.predict.time.work_by_phase import work_by_phase
from memlab.predict.trace.ranks import stands_for
from memlab.predict.trace.trace_format import Trace


def rank_results(
    configs: Sequence[Config], traces: Sequence[Mapping[int, Trace]], calibration: Calibration
) -> list[list[RankResult]]:
    """Return the results of all ranks for each point of a launch.

    ``configs``: of each point. ``traces``: for each point rank -> trace, as if the point ran alone. A rank without a
    trace gets a copy of the result of the traced rank that it equals. Points after an out-of-memory are left out.
    ``calibration``: gives the release delays of blocks that side streams used. Each rank of a command has a
    :class:`CommandMemory` in ``attached``.
    """
    by_rank = {rank: [point[rank] for point in traces] for rank in traces[0]}
    gpus = {rank: gpu_memory(configs[0], points) for rank, points in by_rank.items()}
    ranks = {
        rank: RankReplays(configs[0], points, gpus[rank].capacity, calibration, with_curve=True)
        for rank, points in by_rank.items()
    }
    results = {rank: _results(configs, one, gpus[rank], by_rank[rank]) for rank, one in ranks.items()}
    if len(configs) == 1 and configs[0].hardware.memory_gib:
        tightest = max(ranks, key=lambda rank: ranks[rank].tightness)
        results[tightest][0].fit_probability, _ = probability(ranks[tightest].fits, shipped_ratios())
    alike = [stands_for(rank, sorted(results)) for rank in range(configs[0].hardware.world_size)]
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


def _results(configs: Sequence[Config], rank: RankReplays, gpu: GpuMemory, points: Sequence[Trace]) -> list[RankResult]:
    """Return one rank's result for each point that the launch reaches. ``points``: the trace of each point, as if the
    point ran alone."""
    results = [_rank_result(configs[number], rank, gpu, number, points[number]) for number in range(len(rank.likely))]
    if len(configs) == 1:
        cold = rank.cold()
        results[0].cold_peak_allocated_bytes = cold.peak_allocated
        results[0].cold_peak_reserved_bytes = cold.peak_reserved
    return results


def _rank_result(config: Config, rank: RankReplays, gpu: GpuMemory, number: int, point: Trace) -> RankResult:
    """Build the result of one rank at one point. ``number``: the point's index in the launch; ``point``: its trace."""
    trace, likely = rank.trace, rank.likely[number]
    host, sizes = host_peak(trace), sizes_from(config.predict.outside)
    oom = out_of_memory(trace, likely) if likely.oom and trace.pieces else likely.oom
    return RankResult(
        rank=trace.rank,
        device=f"cuda:{trace.rank}",
        device_name=config.hardware.gpu,
        memory_source=PREDICTED,
        status="gpu_oom" if likely.oom else "ok",
        reason=_reason(oom, likely, gpu.capacity) if oom else None,
        device_total_bytes=gpu.total,
        peak_allocated_bytes=likely.peak_allocated,
        peak_active_bytes=likely.peak_active,
        peak_reserved_bytes=likely.peak_reserved,
        device_used_bytes=likely.peak_reserved + gpu.outside,
        process_used_bytes=likely.peak_reserved + gpu.outside,
        host_peak_bytes=host.process,
        host_pinned_bytes=host.pinned,
        num_alloc_retries=likely.num_alloc_retries,
        num_ooms=int(bool(likely.oom)),
        phases=likely.phases,
        parameters=trace.parameters,
        trainable_parameters=trace.trainable_parameters,
        oom=oom,
        timing={"trace_cpu_s": point.seconds},
        peak_reserved_range_bytes=rank.reserved_range(number),
        verdict=rank.verdict(number),
        breakdown=breakdown(trace, likely),
        curve=curve(likely) if likely.curve and not likely.oom else None,
        work=work_by_phase(point) if point.work else None,
        attached=asdict(command_memory(trace, likely, outside_parts(trace, sizes))) if trace.pieces else None,
        model_flops_per_step=_model_flops(config, point) if point.model_flops else None,
        unknown=point.unknown | _unknown_gpu(config),
    )


def _unknown_gpu(config: Config) -> dict[str, str]:
    why = unknown_model(config.hardware.gpu)
    return {GPU_MODEL: why} if why else {}


def _model_flops(config: Config, trace: Trace) -> float:
    by_token, by_pair = trace.model_flops
    samples, tokens = config.batch.micro * config.batch.accumulation, config.seq_len.tokens
    return samples * (by_token * tokens + by_pair * tokens**2)


def _reason(oom: Mapping[str, Any], likely: Replay, capacity: int) -> str:
    place = [f"in {oom['phase'] or 'no phase'}", f"step {oom['step']}" if oom.get("step") else "", oom.get("where")]
    return (
        f"{', '.join(filter(None, place))}: {in_gib(oom['requested_bytes'])} more are needed beside "
        f"{in_gib(likely.peak_allocated)} allocated, and the allocator has {in_gib(capacity)}"
    )
