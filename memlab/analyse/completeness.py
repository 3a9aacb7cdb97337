"""Completeness check of a run with status ok: every rank, the planned steps, finite losses."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from memlab.core.record import Record


def shortcomings(record: Record) -> list[str]:
    """List what is missing from a run, a phrase each; empty for a complete run, and for any run that did not end as ok.

    Ranks, steps and losses are checked for measured runs only: a prediction needs one rank and takes no steps.
    """
    if record.status != "ok":
        return []
    if record.source != "measured":
        return [] if record.summary else ["no values"]
    return [*_ranks(record), *_steps(record), *_losses(record)]


def _ranks(record: Record) -> list[str]:
    planned = record.config.hardware.gpus
    present = [rank["rank"] for rank in record.ranks]
    found = []
    if missing := sorted(set(range(planned)) - set(present)):
        found.append(f"no values of rank {', '.join(map(str, missing))} (of {planned})")
    twice = sorted({str(rank) for rank in present if present.count(rank) > 1})
    if twice:
        found.append(f"rank {', '.join(twice)} is there more than once")
    silent = [str(rank.get("rank")) for rank in record.ranks if rank.get("status", "ok") != "ok"]
    if silent:
        found.append(f"rank {', '.join(silent)} did not end as ok")
    return found


def _steps(record: Record) -> list[str]:
    planned = record.config.measure.steps
    if record.steps.get("averaged_over") == planned:  # an import may have only the mean
        return []
    if record.ranks and all(map(_has_no_times, record.ranks)):
        return ["no step has a time, because each was recorded (--explain) or profiled"]
    short = [rank for rank in record.ranks if len(rank.get("step_seconds") or []) != planned]
    counts = ", ".join(f"rank {rank.get('rank')}: {len(rank.get('step_seconds') or [])}" for rank in short[:3])
    return [f"{planned} steps were planned, measured were {counts}"] if short else []


def _has_no_times(rank: Mapping[str, Any]) -> bool:
    """Whether the meters slowed all steps of a command's rank."""
    attached = rank.get("attached") or {}
    slowed = attached.get("recorded_steps", 0) + len(attached.get("profiled_steps", []))
    return 0 < attached.get("steps", 0) <= slowed


def _losses(record: Record) -> list[str]:
    return [
        f"rank {rank.get('rank')}: the loss of step {step} is {loss}"
        for rank in record.ranks
        for step, loss in _not_finite(rank)
    ]


def _not_finite(rank: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """Find the first loss that is not a finite number: step and loss. Later such losses follow from the first."""
    wrong = [(step, loss) for step, loss in enumerate(rank.get("losses") or []) if loss is None or not isfinite(loss)]
    return wrong[:1]
