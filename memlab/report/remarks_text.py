"""Third line of the answer, what explains it or would help; and its last lines, what was assumed, and which batches of
an epoch a predicted command read ahead."""

from collections.abc import Iterator, Mapping
from typing import Any

from memlab.analyse.command_facts import epochs_over_ranks
from memlab.analyse.run_view import shortcomings
from memlab.core.basis import MEASURED
from memlab.core.record import DOES_NOT_FIT, EDGE, FITS, GPU_MODEL, OUT_OF_MEMORY, PREDICTED, WITHOUT_RESULT, Record
from memlab.planner.changes import likely_remedies
from memlab.report import units, verdict_text
from memlab.report.speed_text import paid_hardware
from memlab.simulator.rank.unpredictable import SET_DEVICE
from memlab.simulator.trace.trace_format import DECIDED

NEAR = 0.9
"""Share of the memory that a rank can have from which on other library versions could change the verdict."""

NOTABLE = 0.05
"""Smallest share of the memory that is needed which a change must take off to be named."""

TRACED = ("torch", "deepspeed", "transformers")
"""Libraries whose versions decide the predicted memory."""

WHAT_TO_DO = {
    "host_oom": "Offload less, or take a machine with more memory.",
    "timeout": "If no rank hung, raise the time limit.",
    **dict.fromkeys(WITHOUT_RESULT, "Run the same command again."),
}
"""Status of a run without a result -> what the user can do."""

_ENDS = {
    "generation": ("generations are as long as they may be", "they end as soon as they may"),
    "routing": ("tokens are spread over all experts", "all go to the same experts"),
    "selection": ("masks of unknown values select all elements", "they select none"),
}
"""Choice -> its two ends. All other figures are for the first one."""


def remark(record: Record) -> str:
    """Write the finding that matters most, or the best change of a run that does not fit; empty without either."""
    return next(filter(None, _remarks(record)), "")


def assumed(record: Record) -> list[str]:
    """Write what the answer takes for granted and what could change its verdict, the most doubtful first."""
    finders = (_edge, _idle, _range, _peak, _convolutions, _gpu, _values, _triton, _versions, read_ahead_sentences)
    return [sentence for find in finders for sentence in find(record)]


def best_change(record: Record) -> str:
    """Write which single change makes a run fit, or else saves the most memory."""
    changes = record.command.get("changes", {})
    tried = [one for one in changes.get("tried", ()) if one["needs"] and (one["saved_bytes"] or 0) > 0]
    if tried:
        best, needs = tried[0], tried[0]["needs"]
        does = "would fit" if needs["verdict"] == FITS else f"saves {units.size(best['saved_bytes'])}, not enough"
        return f"{best['change']} {does} ({units.about(needs['used'])} GiB; {best['price']})."
    need, limit = verdict_text.needed(record) or 0, verdict_text.memory_limit(record) or 0
    found = likely_remedies(record)
    if not found or found[0][1] <= NOTABLE * need:
        return ""
    change, nbytes = found[0]
    enough = "" if need - nbytes <= limit else ", not enough alone"
    most = units.about(nbytes)
    return f"{change.told} would take at most {most} GiB off the peak{enough}; memlab plan --changes predicts it."


def _remarks(record: Record) -> Iterator[str]:
    for gpu, sharers in verdict_text.sharing(record):
        yield f"Ranks {verdict_text.ranges(sharers)} all use {gpu}, and share its memory: {SET_DEVICE}."
    if (early := record.command.get("ended_early")) and record.status == "ok":
        yield early_end(early)
    if growth := record.command.get("growth"):
        yield verdict_text.growth_sentence(growth)
    missing = shortcomings(record)
    if missing:
        yield f"Incomplete: {'; '.join(missing)}."
    if record.ranks and record.source == PREDICTED and record.status == "ok" and not verdict_text.memory_limit(record):
        yield "The memory of the GPU is not known: set hardware.memory_gib."
    if record.status in OUT_OF_MEMORY or record.summary.get("verdict") in (EDGE, DOES_NOT_FIT):
        yield best_change(record)
    yield WHAT_TO_DO.get(record.status, "")
    if record.status == "ok":
        yield from retries(record)


def early_end(early: Mapping[str, Any]) -> str:
    """Write what the prediction could not follow, and for which steps the answer is."""
    what = early["phase"] or "the script"
    at = f" at {early['where']}" if early["where"] else ""
    return (
        f"The answer is for the first {units.counted(early['steps'], 'step')} alone: {what}{at}, and what comes after "
        f"it, could not be followed ({early['reason'].rstrip('.')})."
    )


def retries(record: Record) -> Iterator[str]:
    """Write how often the allocator gave its cache back to the device, and in which step it did so first."""
    flushes = max((rank["num_alloc_retries"] or 0 for rank in record.ranks), default=0)
    step = next((row["step"] for row in record.steps.get("rows", []) if row.get("alloc_retries")), None)
    if flushes:
        when = f", first in step {step}: those steps are slower" if step else ", none of them in a step"
        yield f"The allocator emptied its cache {units.counted(flushes, 'time')} after a request had failed{when}."


def _edge(record: Record) -> Iterator[str]:
    if record.summary.get("verdict") == EDGE:
        known = verdict_text.how_sure(record.summary)
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
    for found in record.command.get("ranges", []):
        if found["choice"] == "order" and len(set(map(units.about, found["device_used_bytes"]))) > 1:
            low, high = map(units.about, found["device_used_bytes"])
            yield f"The loader shuffles without a seed: in other orders of the batches, it takes {low} to {high} GiB."
        if found["choice"] not in _ENDS:
            continue
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
    """Write what a run takes on this GPU, if it needs less, or if it runs out of memory before it has what it needs."""
    taken = max((rank["device_used_bytes"] or 0 for rank in record.ranks), default=0)
    need = verdict_text.needed(record)
    if record.status == "ok" and need is not None and taken > need:
        yield f"Where memory is free it takes up to {units.about(taken)} GiB, and gives back what it does not need."
    elif record.status == "gpu_oom" and need is not None and taken:
        yield f"Out of memory at {units.about(taken)} GiB; on a larger GPU, the run takes {units.about(need)} GiB."


def _convolutions(record: Record) -> Iterator[str]:
    """Write what cuDNN takes for convolutions beside what the run needs; of a measured run, that it has taken it."""
    if workspaces := verdict_text.workspaces_of(record):
        more = units.about(workspaces[1] - workspaces[0])
        yield f"cuDNN takes up to {more} GiB more for convolutions where that memory is free, and gives it back."
    models = [model for rank in record.ranks for model in (rank.get("attached") or {}).get("models") or ()]
    convolve = (2 * model.get("convolution_parameters", 0) > model["parameters"] for model in models)
    if record.source == MEASURED and any(convolve):
        yield "The peak includes memory that cuDNN took for convolutions because it was free: the run may need less."


def _gpu(record: Record) -> Iterator[str]:
    if why := verdict_text.why_unknown(record, GPU_MODEL):
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
    found = record.command.get("assumed", {})
    rank = record.ranks[0] if record.ranks else {}
    return [
        f"{sentence.removesuffix(DECIDED)} ({units.counted(times, 'time')})"
        for sentence, times in sorted(found.items(), key=lambda each: -each[1])
        if sentence.endswith(DECIDED) and (of_libraries or not _is_in_a_library(sentence, rank))
    ]


def _is_in_a_library(sentence: str, rank: Mapping[str, Any]) -> bool:
    line = sentence.partition(" at ")[2].partition(" ")[0]
    return "(called at " in sentence or verdict_text.is_of_a_library(line, rank)


def _triton(record: Record) -> Iterator[str]:
    """Write what the prediction lacks because a package is not installed that every GPU machine has."""
    if record.source == PREDICTED and record.environment.get("trl") and not record.environment.get("triton"):
        yield (
            "Triton is not installed here. CUDA builds of torch bring it, and TRL's losses take less memory with it: "
            "pip install triton, and predict again."
        )


def _versions(record: Record) -> Iterator[str]:
    """Write the library versions of a prediction that is so close to the limit that others could not fit."""
    limit = verdict_text.memory_limit(record)
    used = max((rank["device_used_bytes"] or 0 for rank in record.ranks), default=0)
    known = [f"{name} {record.environment[name]}" for name in TRACED if name in record.environment]
    if "verdict" in record.summary and known and limit and not verdict_text.on_cpu(record) and used > NEAR * limit:
        yield f"Predicted for {', '.join(known)}: other versions can reserve more or less."


_READ = {"training": "the epoch", "evaluation": "the evaluation"}

_TOKENS = ("input_ids", "attention_mask")
"""Tensors whose elements are tokens."""


def read_ahead_sentences(record: Record) -> list[str]:
    """Write which batches were looked at, which of them ran, and what was not looked at."""
    command = record.command
    if "epochs" not in command:
        return []
    steps = command["ended_early"]["steps"] if "ended_early" in command else None
    sentences = [sentence for epoch in epochs_over_ranks(command["epochs"]) for sentence in _of_epoch(epoch, steps)]
    facts = [rank["attached"] or {} for rank in record.ranks]
    lasts = record.summary.get("verdict") in (FITS, EDGE)  # else memory ends before
    if lasts and command["steps"] is None and any(each.get("ended") == "stopped" for each in facts):
        steps = max(each.get("steps", 0) for each in facts)
        sentences.append(
            f"The training goes on after {steps} steps and was stopped there: what follows it (a last evaluation, a "
            "last saving) is not predicted."
        )
    return list(dict.fromkeys(sentences))


def _of_epoch(epoch: Mapping[str, Any], steps: int | None) -> Iterator[str]:
    yield f"{_looked_at(epoch)}{_ran(epoch, steps)}."
    if "steps_replayed" in epoch:
        is_whole = epoch["steps_replayed"] == epoch["steps_of_epoch"]
        part = "All" if is_whole else f"{epoch['steps_replayed']:,} of the"
        largest = "" if is_whole else "; those with the largest batches come after them"
        yield f"{part} {epoch['steps_of_epoch']:,} optimizer steps of the epoch were replayed in their order{largest}."
    if epoch["failure"] is None and not epoch.get("is_shared") and epoch.get("ranks", 1) > 1:
        yield "The loader does not show which batches other ranks read: those of one rank were read."


def _looked_at(epoch: Mapping[str, Any]) -> str:
    """Write how much of an epoch was looked at."""
    what, read, total = _READ[epoch["purpose"]], f"{epoch['batches_read']:,}", epoch["batches"]
    if epoch["failure"]:
        return f"The batches of {what} could not be looked at ({epoch['failure']}): only the first ones ran"
    if epoch["is_stream"] and total is None:
        return f"The data of {what} is a stream: its first {read} batches were looked at, later ones may be larger"
    ranks = f" of {epoch['ranks']:,} ranks" if epoch.get("is_shared") and epoch["ranks"] > 1 else ""
    if total is not None and epoch["batches_read"] >= total:
        of = f" of {what}{ranks}" if ranks or epoch["purpose"] == "evaluation" else ""
        return f"All {read} batches{of} were looked at" if total > 1 else f"The only batch{of} was looked at"
    of = f"of {total:,} batches" if total is not None else "batches"
    return f"{read} {of} of {what}{ranks} were looked at; a larger one may be among the others"


def _ran(epoch: Mapping[str, Any], steps: int | None) -> str:
    """Write which of the batches ran besides the first ones. ``steps``: after which the run ended early."""
    if epoch["is_run_whole"]:
        return f"; all of them ran{', because memory grows from batch to batch' * (epoch['purpose'] == 'evaluation')}"
    if not epoch["dearest"]:
        is_whole = epoch["batches"] is not None and epoch["batches_read"] >= epoch["batches"]
        return "; the first ones are the largest" if is_whole and epoch["batches"] > 1 and not epoch["failure"] else ""
    ran = "run"
    if steps is not None and any(
        batch["run_as_step"] is None or batch["run_as_step"] > steps for batch in epoch["dearest"]
    ):
        ran = "not run, or not all of them"
    largest = [_batch(batch) for batch in epoch["dearest"]]
    return f"; the largest, {' and '.join(largest)}, {'were' if len(largest) > 1 else 'was'} {ran}"


def _batch(batch: Mapping[str, Any]) -> str:
    """Write ``batch 14 of rank 3 (4 x 1,024 tokens)``."""
    name = next((each for each in (*_TOKENS, *batch["shapes"]) if each in batch["shapes"]), "")
    size = " x ".join(f"{each:,}" for each in batch["shapes"].get(name, ()))
    shape = f"{size} tokens" if name in _TOKENS else f"{name} {size}".strip()
    rank = f" of rank {batch['rank']}" if batch["rank"] else ""
    return f"batch {batch['batch']:,}{rank} ({shape})"
