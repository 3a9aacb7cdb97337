"""Results of all ranks for the record of a prediction; a command's replayed memory in the rank file's format."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memlab.core.config import Config
from memlab.core.grouping import grouped
from memlab.core.record import FITS, GPU_MODEL, PREDICTED, RankResult, worst
from memlab.core.sizes import GIB, UNLIMITED, in_gib
from memlab.prediction.fit_outside import sizes_from
from memlab.prediction.memory.fit_probability import probability, shipped_ratios
from memlab.prediction.memory.host import host_peak, host_peaks_of_pieces
from memlab.prediction.memory.ledger import breakdown, curve
from memlab.prediction.memory.outside import outside_parts
from memlab.prediction.memory.rank_replays import RankReplays
from memlab.prediction.memory.replay import PieceMemory, Replay
from memlab.prediction.time.calibrate import Calibration
from memlab.prediction.time.work_by_phase import work_by_phase
from memlab.prediction.traces.store import stands_for
from memlab.simulator import allocator
from memlab.simulator.constants import unknown_model
from memlab.simulator.outside.parts import OutsidePart, outside_bytes
from memlab.simulator.trace.events import Alloc
from memlab.simulator.trace.trace_format import Piece, Trace, Traces


@dataclass(frozen=True)
class GpuMemory:
    """Sizes in bytes. ``total``: the whole memory, ``None`` if not known; ``outside``: the memory used outside the
    allocator; ``capacity``: the most that the allocator can reserve."""

    total: int | None
    outside: int
    capacity: int


def gpu_memory(config: Config, traces: Iterable[Trace]) -> GpuMemory:
    """Return the memory of one GPU for the rank with the most outside the allocator. The allocator can have what is not
    used outside, or ``per_process_memory_fraction`` of the whole if that is less.

    ``traces``: of the ranks, or of one rank's points.
    """
    hardware = config.hardware
    outside = max(outside_bytes(outside_parts(trace, sizes_from(config.predict.outside))) for trace in traces)
    if not hardware.memory_gib:
        return GpuMemory(None, outside, UNLIMITED)
    total = int(hardware.memory_gib * GIB)
    allowed = int(total * allocator.parse(config.allocator.conf).memory_fraction)
    return GpuMemory(total, outside, min(total - outside, allowed))


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
    gpus = [gpu_memory(config, [trace]) for trace in traces]
    ranks = [
        RankReplays(config, [trace], gpu.capacity if limited else UNLIMITED, calibration)
        for trace, gpu in zip(traces, gpus, strict=True)
    ]
    replays = [rank.likely[0] for rank in ranks]
    used = max(replay.peak_reserved + gpu.outside for replay, gpu in zip(replays, gpus, strict=True))
    return Estimate(
        verdict=worst(rank.verdict(0) for rank in ranks) if limited else FITS,
        used=used,
        free=gpus[0].total - used if gpus[0].total else None,
        host=max(host_peak(trace).process for trace in traces),
        held=_held(replays, max(gpu.outside for gpu in gpus)),
    )


def needs(config: Config, traces: Sequence[Trace], calibration: Calibration) -> Estimate:
    """Return the verdict on the device, and the memory that the point would need on a device of any size."""
    verdict = estimate(config, traces, calibration).verdict
    return replace(estimate(config, traces, calibration, limited=False), verdict=verdict)


def _held(replays: Sequence[Replay], outside: int) -> dict[str, int]:
    return {
        name: max(replay.phases[name].peak_allocated_bytes for replay in replays if name in replay.phases) + outside
        for name in sorted({name for replay in replays for name in replay.phases})
    }


@dataclass(frozen=True)
class _Part:
    phase: str
    piece: Piece
    memory: PieceMemory
    host: int
    outside: int


def command_memory(trace: Trace, replay: Replay, outside: Sequence[OutsidePart]) -> dict[str, dict]:
    """Fold the pieces that the replay reached. ``outside``: what is used outside the allocator.

    Returns ``phases`` and ``peak``, with keys and units as in the file of a measured rank (memlab/meters/__init__.py),
    and ``steps``: step, from 1 -> figures of its row; the steps that the replay reached the end of.
    """
    begins, phases = zip(*trace.phase_begins.items(), strict=True)
    at_ends = [outside_bytes(outside, end) for end in (*begins[1:], None)]
    parts = list(map(_Part, phases, trace.pieces, replay.pieces, host_peaks_of_pieces(trace), at_ends))
    in_phases = grouped((part for part in parts if part.phase), lambda part: part.phase)
    highest = max(parts, key=lambda part: part.memory.peak_allocated)
    return {
        "phases": {name: _phase(own) for name, own in in_phases.items()},
        "peak": {
            **_step(highest.piece),
            "phase": highest.phase or None,
            "where": highest.piece.where,
            "bytes": highest.memory.peak_allocated,
        },
        "steps": _steps(parts),
    }


def out_of_memory(trace: Trace, replay: Replay) -> dict[str, Any]:
    """Return the replay's out-of-memory with the step and the user's line, as the meters name them."""
    piece, oom = trace.pieces[len(replay.pieces) - 1], replay.oom or {}
    request = trace.events[oom["event"]]
    line = trace.sites[request.site].user_line if isinstance(request, Alloc) else None  # of a Workspace not known
    return {**oom, **_step(piece), "where": line or piece.where}


def _step(piece: Piece) -> dict[str, int | None]:
    """Return the step of a piece, and of a step of the whole epoch the one that ran in its place."""
    return {"step": piece.shown_step, **({} if piece.step_of_epoch is None else {"run_as_step": piece.step})}


def _phase(parts: Sequence[_Part]) -> dict[str, Any]:
    highest = max(parts, key=lambda part: part.memory.peak_allocated)
    return {
        "count": sum(part.piece.ends_phase for part in parts),
        "seconds": None,
        "where": highest.piece.where,
        "step": highest.piece.shown_step,
        **_peaks(parts),
        "end_allocated_bytes": parts[-1].memory.end_allocated,
        "used_bytes": max(part.memory.peak_reserved + part.outside for part in parts),
        "host_rss_bytes": None,
    }


def _peaks(parts: Sequence[_Part]) -> dict[str, int]:
    return {
        "peak_allocated_bytes": max(part.memory.peak_allocated for part in parts),
        "peak_active_bytes": max(part.memory.peak_active for part in parts),
        "peak_reserved_bytes": max(part.memory.peak_reserved for part in parts),
        "host_peak_bytes": max(part.host for part in parts),
    }


def _steps(parts: Sequence[_Part]) -> dict[int, dict[str, Any]]:
    in_steps = [part for part in parts if part.piece.step is not None]
    retries = _retries(in_steps)
    found = {}
    for number, own in grouped(in_steps, lambda part: part.piece.step or 0).items():
        in_phases = grouped((part for part in own if part.phase), lambda part: part.phase.removeprefix("first_"))
        peaks = {name: _peaks(each) for name, each in in_phases.items()}
        highest = max(own, key=lambda part: part.memory.peak_allocated)
        found[number] = {
            **_peaks(own),
            "alloc_retries": retries[number],
            "ooms": 0,
            "phase": highest.phase.removeprefix("first_") or None,
            "phases": {
                name: [each["peak_allocated_bytes"], each["peak_reserved_bytes"]] for name, each in peaks.items()
            },
        }
    return found


def _retries(parts: Sequence[_Part]) -> Counter[int]:
    """Return the retries of each step, with those since the step before. Copies of a step may follow other steps.
    ``parts``: those in steps."""
    found: Counter[int] = Counter()
    for before, part in zip([0, *(part.memory.retries for part in parts)], parts, strict=False):
        found[part.piece.step or 0] += part.memory.retries - before
    return found


def rank_results(
    configs: Sequence[Config], traces: Sequence[Traces], calibration: Calibration
) -> list[list[RankResult]]:
    """Return the results of all ranks for each point of a launch.

    ``configs``: of each point. ``traces``: for each point rank -> trace, as if the point ran alone. A rank without a
    trace gets a copy of the result of the traced rank that it equals. Points after an out-of-memory are left out.
    ``calibration``: gives the release delays of blocks that side streams used. Each rank of a command has
    what :func:`command_memory` returns in ``attached``.
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
    return [
        [
            replace(results[like][point], rank=rank, device=f"cuda:{rank}", same_as_rank=None if rank == like else like)
            for rank, like in enumerate(alike)
        ]
        for point in range(min(map(len, results.values())))
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
    unknown_gpu = unknown_model(config.hardware.gpu)
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
        process_used_bytes=likely.peak_reserved + gpu.outside - point.beside,
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
        attached=command_memory(trace, likely, outside_parts(trace, sizes)) if trace.pieces else None,
        model_flops_per_step=_model_flops(config, point) if point.model_flops else None,
        unknown=point.unknown | ({GPU_MODEL: unknown_gpu} if unknown_gpu else {}),
    )


def _model_flops(config: Config, trace: Trace) -> float:
    by_token, by_pair = trace.model_flops or (0.0, 0.0)
    samples, tokens = config.batch.micro * config.batch.accumulation, config.seq_len.tokens
    return samples * (by_token * tokens + by_pair * tokens**2)


def _reason(oom: Mapping[str, Any], likely: Replay, capacity: int) -> str:
    place = [f"in {oom['phase'] or 'no phase'}", f"step {oom['step']}" if oom.get("step") else "", oom.get("where")]
    return (
        f"{', '.join(filter(None, place))}: {in_gib(oom['requested_bytes'])} more are needed on top of "
        f"{in_gib(likely.peak_allocated)} allocated, and the allocator has {in_gib(capacity)}"
    )
