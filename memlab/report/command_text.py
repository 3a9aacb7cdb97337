"""Terminal output about a user's own command: its phases, its steps, and what its script was found to use."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from memlab.analyse.other_words import other_words
from memlab.core.record import COMMAND_PHASES, Record
from memlab.report import units
from memlab.report.answers import short_path
from memlab.report.command_prediction_text import package_sentences, range_sentences, read_ahead_sentences
from memlab.report.terminal_table import show_table

QUANTITIES = {
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "allocated at its end": "end_allocated_bytes",
    "host": "host_peak_bytes",
}
"""Column -> key of a phase."""

COUNTED = {"sample": "samples", "token": "tokens"}

GROWS = {"allocated": "peak_allocated_bytes", "reserved": "peak_reserved_bytes", "host": "host_peak_bytes"}
GROWTH = 0.01
"""Smallest growth of a peak over the steps that is told, as a share."""

FRAGMENTED = 0.1
"""Smallest share of the reserved memory that was never allocated at once and is told."""


def show_command_phases(record: Record, console: Console) -> None:
    """Print a row for each phase that occurred, with the values of its highest rank and its place in the script."""
    found = {phase: _highest(record.ranks, phase) for phase in COMMAND_PHASES}
    known = {phase: values for phase, values in found.items() if values}
    places = units.places(values.get(key) for values in known.values() for key in QUANTITIES.values())
    rows = [
        (
            phase.replace("_", " "),
            *(units.gib(values.get(key), places) for key in QUANTITIES.values()),
            str(values.get("count") or "-"),
            _short(values.get("where")) or "-",
        )
        for phase, values in known.items()
    ]
    columns = ["phase", *QUANTITIES, "times", "where"]
    if rows:
        show_table(
            console, "Peak by phase, highest rank, GiB", columns, rows, notes=1, spare=["allocated at its end", "times"]
        )


def _highest(ranks: Sequence[Mapping[str, Any]], phase: str) -> Mapping[str, Any]:
    """Return a phase of the rank on which it is highest: on the device, or on the host without one."""
    each = [facts for rank in ranks if (facts := _attached(rank).get("phases", {}).get(phase))]
    return max(
        each, key=lambda facts: (facts.get("peak_allocated_bytes") or 0, facts.get("host_peak_bytes") or 0), default={}
    )


def command_sentences(record: Record) -> list[str]:
    """Write where the peak is, how memory developed over the steps, and what of the configuration is not known."""
    if not record.command:
        return []
    return [
        *_peak(record),
        *range_sentences(record),
        *read_ahead_sentences(record),
        *package_sentences(record),
        *_growth(record),
        *_fragmentation(record),
        *_retries(record),
        *_disagreements(record),
        *_other_words(record),
        *_not_found(record),
    ]


def _peak(record: Record) -> Iterator[str]:
    """Name the step and the batch of the highest peak of all ranks."""
    peaks = [(peak["bytes"], rank["rank"], peak) for rank in record.ranks if (peak := _attached(rank).get("peak"))]
    if not peaks:
        return
    nbytes, rank, peak = max(peaks, key=lambda each: each[0])
    batch = [units.counted(peak[key], name) for name, key in COUNTED.items() if peak.get(key) is not None]
    if peak.get("longest_sample") is not None:
        batch.append(f"the longest sample has {units.tokens(peak['longest_sample'])}")
    step, phase = f"step {peak['step']}" if peak.get("step") else "", (peak.get("phase") or "").replace("_", " ")
    if not phase:
        step = f"{step}, between its phases" if step else "a part of the script without a phase"
    place = [step, phase, f"on rank {rank}", _short(peak.get("where"))]
    of = f" ({', '.join(batch)})" if batch else ""
    yield f"The peak, {units.about(nbytes)} GiB, is in {', '.join(filter(None, place))}{of}."


def _growth(record: Record) -> Iterator[str]:
    """Write how much the peak of a step grew from the second step on, and in which step it was highest."""
    if record.command.get("epochs"):  # steps that were chosen because they differ
        return
    rows = record.steps.get("rows", [])[1:]
    for name, key in GROWS.items():
        values = [(row[key], row["step"]) for row in rows if row.get(key) is not None]
        if not values:
            continue
        first, step = values[0]
        highest = max(value for value, _ in values)
        if highest - first > GROWTH * first:
            when = next(step for value, step in values if value == highest)
            yield (
                f"{name.capitalize()} memory of a step grows from {units.about(first)} GiB in step {step} "
                f"to {units.about(highest)} GiB in step {when} of {values[-1][1]}."
            )


def _fragmentation(record: Record) -> Iterator[str]:
    """Write how much of the reserved memory was never in use at once, on the rank that reserved most."""
    rank = max(record.ranks, key=lambda each: each["peak_reserved_bytes"] or 0, default=None)
    if rank is None or not rank["peak_reserved_bytes"] or rank["peak_active_bytes"] is None:
        return
    reserved, active = rank["peak_reserved_bytes"], rank["peak_active_bytes"]
    if reserved - active > FRAGMENTED * reserved:
        yield (
            f"Fragmentation: of the {units.about(reserved)} GiB that the allocator reserved, at most "
            f"{units.about(active)} GiB were in use at once ({units.percent(active / reserved)})."
        )


def _retries(record: Record) -> Iterator[str]:
    """Write how often the allocator gave its cache back to the device, and in which step it did so first."""
    flushes = max((rank["num_alloc_retries"] or 0 for rank in record.ranks), default=0)
    step = next((row["step"] for row in record.steps.get("rows", []) if row.get("alloc_retries")), None)
    if flushes:
        when = f", first in step {step}: steps with a flush are slower" if step else ", none of them in a step"
        yield f"Allocator cache flushes (retries after an allocation failed): {flushes} on the rank with most{when}."


def _disagreements(record: Record) -> Iterator[str]:
    for each in record.command.get("disagreements", []):
        yield f"{each['key']}: composed was {each['composed']}, but the script used {each['found']}."


def _other_words(record: Record) -> Iterator[str]:
    told = [f"{group}: {words}" for group, words in other_words(record).items()]
    if told:
        yield f"Found, but without a word in conf/: {'; '.join(told)}."


def _not_found(record: Record) -> Iterator[str]:
    words = other_words(record)  # memlab's own settings (measure) are nothing to find out
    unknown = [key for key in record.unknown_config if key not in words and not key.startswith("measure.")]
    if record.ranks and unknown:
        yield f"Not found out: {', '.join(unknown)}."


def _attached(rank: Mapping[str, Any]) -> Mapping[str, Any]:
    return rank["attached"] or {}


def _short(where: str | None) -> str:
    return short_path(where) if where else ""
