"""Answer of a run in one sentence: whether it fits or trained, its speed, and the phase of its memory peak."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from memlab.analyse.completeness import shortcomings
from memlab.core.record import HOST, LIVE_TENSORS, Record
from memlab.core.sizes import GIB
from memlab.predict import allocator
from memlab.predict.memory.fit_probability import FEW
from memlab.predict.memory.verdicts import DOES_NOT_FIT, EDGE
from memlab.report import units
from memlab.system.terminal import safe

PHASES = {
    "load": "loading the weights",
    "model_build": "building the model",
    "engine_init": "engine initialisation",
    "first_forward": "the first forward pass",
    "first_backward": "the first backward pass",
    "first_optimizer_step": "the first optimizer step",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer_step": "the optimizer step",
    "resume": "resuming",
    **dict.fromkeys(("first_evaluate", "evaluate"), "evaluation"),
    **dict.fromkeys(("first_generate", "generate"), "generation"),
    **dict.fromkeys(("first_save", "save"), "saving"),
}

AGAIN = "run the same command again"

ENDINGS = {
    "host_oom": ("Out of host memory", "offload less, or take a machine with more memory"),
    "timeout": ("Not finished in time", "if no rank hung, raise measure.timeout_s"),
    "failed": ("Failed", "the logs are in logs/ of the run folder"),
    "infra": ("Not measured", AGAIN),
    "unsupported": ("Unsupported", ""),
    "interrupted": ("Interrupted", AGAIN),
}
"""Status of a run without quantities -> how the run ended, and what the user can do."""


def answer(record: Record) -> str:
    """Write the sentence about any record."""
    if record.status == "ok":
        return _predicted(record) if record.source == "predicted" else _trained(record)
    if record.status == "gpu_oom":
        return _out_of_memory(record)
    ending, advice = ENDINGS[record.status]
    if record.source == "predicted" and record.status == "failed":
        ending, advice = "Not predicted", ""
    reason = (record.reason or "no reason given").splitlines()[0].rstrip(".;: ")
    return _sentence(ending, [reason, advice])


def how_sure(summary: Mapping[str, Any]) -> str:
    """Write the probability of a predicted run's verdict; at the edge, the probability that the run fits.

    The text also gives the number of measured configurations of the same GPU and kind. If these are too few, the
    probability is called unknown. Empty if no probability was computed.
    """
    probability = summary.get("fit_probability")
    if probability is None:
        return ""
    if not is_calibrated(summary):
        lacking = "configuration" if summary.get("fit_probability_same_gpu") else "GPU"
        return f"probability unknown (not calibrated for this {lacking})"
    verdict = summary.get("verdict")
    percent = units.percent(1 - probability if verdict == DOES_NOT_FIT else probability)
    sure = "sure to fit" if verdict == EDGE else "sure"
    return f"{percent} {sure} ({summary['fit_probability_same_kind']} similar configurations were measured)"


def is_calibrated(summary: Mapping[str, Any]) -> bool:
    """Return whether enough configurations of the same GPU and kind were measured to show a probability."""
    return (summary.get("fit_probability_same_kind") or 0) >= FEW


def ranges(numbers: Iterable[int]) -> str:
    """Write whole numbers with consecutive ones as a range: ``0-3, 7``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _predicted(record: Record) -> str:
    fits = "Fits" if _limit(record, record.ranks) else "Memory of the GPU unknown"
    ending = "At the edge" if record.summary.get("verdict") == EDGE else fits
    need = ", ".join(filter(None, [_need(record), how_sure(record.summary)]))
    return _sentence(ending, [need, _speed(record), _peak(record)])


def _trained(record: Record) -> str:
    missing = shortcomings(record)
    ending = f"Trained, but incompletely ({'; '.join(missing)})" if missing else "Trained"
    return _sentence(ending, [_need(record), _speed(record), _peak(record)])


def _out_of_memory(record: Record) -> str:
    endings = {EDGE: "At the edge: likely out of memory", DOES_NOT_FIT: "Does not fit: out of memory"}
    ending = endings.get(record.summary.get("verdict"), "Out of memory")
    failed = [rank for rank in record.ranks if rank["status"] == "gpu_oom"]
    if not failed:  # implied by another point, or imported
        return _sentence(ending, [record.reason or "no reason given"])
    numbers = [rank["rank"] for rank in failed]
    oom = failed[0]["oom"] or {}
    where = _place(oom) if oom.get("phase") in PHASES else ""
    taken, requested = _taken(record, failed[:1]), oom.get("requested_bytes")
    return _sentence(
        f"{ending} on rank{'s' * (len(numbers) > 1)} {ranges(numbers)}{where and f' {where}'}",
        [
            f"{units.about(requested)} GiB requested beside {taken}" if requested and taken else "",
            how_sure(record.summary),
        ],
    )


def _sentence(beginning: str, parts: Sequence[str]) -> str:
    text = "; ".join(filter(None, parts))
    return safe(f"{beginning}: {text}." if text else f"{beginning}.")


def _need(record: Record) -> str:
    """Write the memory that the fullest rank takes and the memory that it can have."""
    ranks = record.ranks
    if not ranks:
        return "no values"
    if ranks[0]["memory_source"] == HOST:
        resident = _highest(ranks, "host_peak_bytes") or 0
        return f"{units.about(resident)} GiB resident on {_where(ranks, 'host_peak_bytes', 'rank')}"
    if ranks[0]["memory_source"] == LIVE_TENSORS:
        tensors, resident = (_highest(ranks, f"peak_{kind}_bytes") or 0 for kind in ("allocated", "reserved"))
        where = _where(ranks, "peak_reserved_bytes", "rank")
        return f"{units.about(tensors)} GiB of tensors and {units.about(resident)} GiB resident on {where}"
    kind = "allocated" if _fraction(record) < 1 else "reserved"
    inside = _highest(ranks, f"peak_{kind}_bytes")
    part = f" ({kind} {units.about(inside)})" if inside else ""
    return f"{_taken(record, ranks)} on {_where(ranks, _taken_key(record, ranks), 'GPU')}{part}"


def _where(ranks: Sequence[Mapping[str, Any]], key: str, unit: str) -> str:
    """Write ``each GPU``, or ``the fullest GPU`` if the shown sizes of the ranks differ."""
    if len(ranks) == 1:
        return f"the {unit}"
    shown = {units.about(rank[key]) for rank in ranks if rank[key] is not None}
    return f"each {unit}" if len(shown) == 1 else f"the fullest {unit}"


def _taken(record: Record, ranks: Sequence[Mapping[str, Any]]) -> str:
    """Write ``46.5 of 79.2 GiB``; the limit is the device's memory, or its ``per_process_memory_fraction``."""
    taken, limit = _highest(ranks, _taken_key(record, ranks)), _limit(record, ranks)
    of = f" of {units.about(limit)}" if limit else ""
    allowed = " that the allocator may take" if _fraction(record) < 1 else ""
    return f"{units.about(taken)}{of} GiB{allowed}" if taken else ""


def _taken_key(record: Record, ranks: Sequence[Mapping[str, Any]]) -> str:
    """Choose the quantity to compare with the limit: memory given out by the driver, or the next best that is known."""
    keys = ("device_used_bytes", "peak_reserved_bytes", "peak_active_bytes", "peak_allocated_bytes")
    return next((key for key in keys[_fraction(record) < 1 :] if _highest(ranks, key)), keys[-1])


def _limit(record: Record, ranks: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the bytes that a rank can have: device memory times the allocator's fraction; ``None`` if unknown."""
    total = _highest(ranks, "device_total_bytes") or (record.config.hardware.memory_gib or 0) * GIB
    return total * _fraction(record) or None


def _fraction(record: Record) -> float:
    """Return the share of the device's memory that the allocator may take."""
    return allocator.parse(record.config.allocator.conf).memory_fraction


def _speed(record: Record) -> str:
    summary, error = record.summary, record.steps.get("error")
    if not summary.get("step_seconds"):
        return "the step time is unknown"
    step = f"{units.seconds(summary['step_seconds'])} a step"
    if record.source == "predicted":
        return f"{step}, within {units.percent(error['p90'])} in 9 of 10 predictions" if error else f"{step} at best"
    price, rate = summary.get("usd_per_million_tokens"), summary["tokens_per_second"]
    cost = "" if price is None else f", {units.usd(price)} a million tokens"
    return f"{step}{'' if rate is None else f', {units.number(rate)} tokens/s'}{cost}"


def _peak(record: Record) -> str:
    """Name the phase of the peak of allocated memory, on the first rank with the highest peak.

    A command without a GPU has a peak of resident memory instead.
    """
    if not record.ranks:
        return ""
    fullest = max(record.ranks, key=lambda rank: rank["peak_allocated_bytes"] or _command_peak(rank).get("bytes", 0))
    of_command = _command_peak(fullest)
    if of_command.get("phase") in PHASES:
        return f"the peak is {_place(of_command)}"
    peaks = {name: phase.get("peak_allocated_bytes", 0) for name, phase in fullest["phases"].items() if name in PHASES}
    return f"the peak is in {PHASES[max(peaks, key=peaks.get)]}" if peaks else ""


def _command_peak(rank: Mapping[str, Any]) -> Mapping[str, Any]:
    return (rank.get("attached") or {}).get("peak") or {}


def _place(at: Mapping[str, Any]) -> str:
    """Write the phase of an out-of-memory or of a peak; of a command also the step, and the line of the script."""
    if not at.get("where"):
        return f"in {PHASES[at['phase']]}"
    step = f" of step {at['step']}" if at.get("step") else ""
    return f"in {PHASES[at['phase']]}{step} ({short_path(at['where'])})"


def short_path(where: str) -> str:
    """Shorten ``/home/me/train.py:65`` to its last two parts."""
    return "/".join(PurePath(where).parts[-2:])


def _highest(ranks: Iterable[Mapping[str, Any]], key: str) -> int | None:
    return max((rank[key] for rank in ranks if rank.get(key)), default=None)
