"""Third line of the answer, what explains it or would help; and its last lines, what was assumed."""

from collections.abc import Iterator, Mapping
from typing import Any

from memlab.analyse.run_view import shortcomings
from memlab.core.record import DOES_NOT_FIT, EDGE, FITS, GPU_MODEL, OUT_OF_MEMORY, PREDICTED, WITHOUT_RESULT, Record
from memlab.planner.changes import remedies
from memlab.predict.trace.shadow.unpredictable import SET_DEVICE
from memlab.predict.trace.trace_format import DECIDED
from memlab.report import units
from memlab.report.growth_text import growth_sentence
from memlab.report.price_text import paid_hardware
from memlab.report.read_ahead_text import read_ahead_sentences
from memlab.report.verdict_text import how_sure, is_of_a_library, memory_limit, needed, on_cpu, ranges, sharing

NEAR = 0.9
"""Share of the memory that a rank can have from which on other library versions could change the verdict."""

NOTABLE = 0.05
"""Smallest share of the memory that is needed which a change must take off to be named."""

TRACED = ("torch", "deepspeed", "transformers")
"""Libraries whose versions decide the predicted memory."""

AGAIN = "Run the same command again."

WHAT_TO_DO = {
    "host_oom": "Offload less, or take a machine with more memory.",
    "timeout": "If no rank hung, raise the time limit.",
    **dict.fromkeys(WITHOUT_RESULT, AGAIN),
}
"""Status of a run without a result -> what the user can do."""

_ENDS = {
    "generation": ("generations are as long as they may be", "they end as soon as they may"),
    "routing": ("tokens are spread over all experts", "all go to the same experts"),
}
"""Choice -> its two ends. All other figures are for the first one."""


def remark(record: Record) -> str:
    """Write the finding that matters most, or the best change of a run that does not fit; empty without either."""
    return next(filter(None, _remarks(record)), "")


def assumed(record: Record) -> list[str]:
    """Write what the answer takes for granted and what could change its verdict, the most doubtful first."""
    finders = (_edge, _idle, _range, _peak, _gpu, _values, _triton, _versions, read_ahead_sentences)
    return [sentence for find in finders for sentence in find(record)]


def best_change(record: Record) -> str:
    """Write which single change makes a run fit, or else saves the most memory."""
    changes = (record.command or {}).get("changes") or {}
    tried = [one for one in changes.get("tried", ()) if one["needs"] and (one["saved_bytes"] or 0) > 0]
    if tried:
        best, needs = tried[0], tried[0]["needs"]
        does = "would fit" if needs["verdict"] == FITS else f"saves {units.size(best['saved_bytes'])}, not enough"
        return f"{best['change']} {does} ({units.about(needs['used'])} GiB; {best['price']})."
    need, limit = needed(record) or 0, memory_limit(record) or 0
    found = [] if record.command else remedies(record)
    if not found or found[0][1] <= NOTABLE * need:
        return ""
    change, nbytes = found[0]
    enough = "" if need - nbytes <= limit else ", not enough alone"
    most = units.about(nbytes)
    return f"{change.told} would take at most {most} GiB off the peak{enough}; memlab plan --changes predicts it."


def _remarks(record: Record) -> Iterator[str]:
    for gpu, sharers in sharing(record):
        yield f"Ranks {ranges(sharers)} all use {gpu}, and share its memory: {SET_DEVICE}."
    growth = (record.command or {}).get("growth")
    if growth:
        yield growth_sentence(growth)
    missing = shortcomings(record)
    if missing:
        yield f"Incomplete: {'; '.join(missing)}."
    if record.ranks and record.source == PREDICTED and record.status == "ok" and not memory_limit(record):
        yield "The memory of the GPU is not known: set hardware.memory_gib."
    if record.status in OUT_OF_MEMORY or record.summary.get("verdict") in (EDGE, DOES_NOT_FIT):
        yield best_change(record)
    yield WHAT_TO_DO.get(record.status, "")
    if record.status == "ok":
        yield from retries(record)


def retries(record: Record) -> Iterator[str]:
    """Write how often the allocator gave its cache back to the device, and in which step it did so first."""
    flushes = max((rank["num_alloc_retries"] or 0 for rank in record.ranks), default=0)
    step = next((row["step"] for row in record.steps.get("rows", []) if row.get("alloc_retries")), None)
    if flushes:
        when = f", first in step {step}: those steps are slower" if step else ", none of them in a step"
        yield f"The allocator emptied its cache {units.counted(flushes, 'time')} after a request had failed{when}."


def _edge(record: Record) -> Iterator[str]:
    if record.summary.get("verdict") == EDGE:
        known = how_sure(record.summary)
        yield (
            "Whether it fits depends on when side streams free memory, or on whether the allocator returns cached "
            f"memory in time{f'; {known}' if known else ''}."
        )


def _idle(record: Record) -> Iterator[str]:
    """Write how many of the GPUs that are paid the command leaves idle."""
    if (used := record.config.hardware.gpus) < (paid := paid_hardware(record).gpus):
        yield f"The command uses {used} of the {paid} GPUs; all {paid} are paid."


def _range(record: Record) -> Iterator[str]:
    """Write the range of the peak for each choice that depends on unknown values."""
    for found in (record.command or {}).get("ranges", []):
        used, other = _ENDS[found["choice"]]
        if "failure" in found:
            yield f"The peak is for the case that {used}. If {other}: not predicted ({found['failure']})."
        else:
            low, high = found["peak_allocated_bytes"]
            figures = max(rank["peak_allocated_bytes"] or 0 for rank in record.ranks)
            first, second = (high, low) if figures >= high else (low, high)
            yield (
                f"Peak: {units.about(first)} GiB if {used} (used for all other figures), {units.about(second)} GiB if "
                f"{other}."
            )


def _peak(record: Record) -> Iterator[str]:
    """Write the peak of a run that needs less than it takes."""
    taken = max((rank["device_used_bytes"] or 0 for rank in record.ranks), default=0)
    need = needed(record)
    if record.status == "ok" and need is not None and taken > need:
        yield f"Where memory is free it takes up to {units.about(taken)} GiB, and gives back what it does not need."


def _gpu(record: Record) -> Iterator[str]:
    if why := next((why for rank in record.ranks if (why := (rank.get("unknown") or {}).get(GPU_MODEL))), None):
        yield f"The GPU's model is not known, so that of an H100 was assumed ({why})."


def _values(record: Record) -> Iterator[str]:
    """Write how often an unknown value decided a branch of the script's own code, with the most frequent one."""
    deciding = deciding_values(record, of_libraries=False)
    if deciding:
        more = f"; {len(deciding) - 1} more such values" if len(deciding) > 1 else ""
        yield f"Not known, and decided a branch: {deciding[0]}{more}."


def deciding_values(record: Record, of_libraries: bool = True) -> list[str]:
    """Write the reads of unknown values that decided a branch, the most frequent first.

    ``of_libraries``: also those in code of the libraries, which decide what is logged and rarely what is allocated.
    """
    found = (record.command or {}).get("assumed", {})
    rank = record.ranks[0] if record.ranks else {}
    return [
        f"{sentence.removesuffix(DECIDED)} ({units.counted(times, 'time')})"
        for sentence, times in sorted(found.items(), key=lambda each: -each[1])
        if sentence.endswith(DECIDED) and (of_libraries or not _is_in_a_library(sentence, rank))
    ]


def _is_in_a_library(sentence: str, rank: Mapping[str, Any]) -> bool:
    line = sentence.partition(" at ")[2].partition(" ")[0]
    return "(called at " in sentence or is_of_a_library(line, rank)


def _triton(record: Record) -> Iterator[str]:
    """Write what the prediction lacks because a package is not installed that every GPU machine has."""
    if record.source == PREDICTED and record.environment.get("trl") and not record.environment.get("triton"):
        yield (
            "Triton is not installed here. CUDA builds of torch bring it, and TRL's losses take less memory with it: "
            "pip install triton, and predict again."
        )


def _versions(record: Record) -> Iterator[str]:
    """Write the library versions of a prediction that is so close to the limit that others could not fit."""
    limit, used = memory_limit(record), max((rank["device_used_bytes"] or 0 for rank in record.ranks), default=0)
    known = [f"{name} {record.environment[name]}" for name in TRACED if name in record.environment]
    if "verdict" in record.summary and known and limit and not on_cpu(record) and used > NEAR * limit:
        yield f"Predicted for {', '.join(known)}: other versions can reserve more or less."
