"""Terminal output about what a predicted command read ahead, and about the values that it could only assume."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memlab.core.record import Record
from memlab.predict.trace.trace_format import DECIDED
from memlab.report import units

_READ = {"training": "the epoch", "evaluation": "the evaluation"}


def read_ahead_sentences(record: Record) -> list[str]:
    """Write which batches were run, which were only read, and what nobody has seen."""
    if "epochs" not in (record.command or {}):
        return []
    sentences = [sentence for epoch in _over_ranks(record.command["epochs"]) for sentence in _of_epoch(epoch)]
    if record.command["steps"] is None and any(_ended(rank) == "stopped" for rank in record.ranks):
        steps = max((rank["attached"] or {}).get("steps", 0) for rank in record.ranks)
        sentences.append(
            f"The script's training goes on after {steps} steps and was stopped there: what follows it (a last "
            "evaluation, a last saving) is not predicted."
        )
    return list(dict.fromkeys(sentences))


_ENDS = {
    "generation": ("generations as long as they may be", "generations that end as soon as they may"),
    "routing": ("tokens spread over all experts", "all tokens at the same experts"),
}
"""Choice -> its two ends. All other figures are for the first one."""


def range_sentences(record: Record) -> list[str]:
    """Write the range of the peak for each choice that nobody knows."""
    return [_of_range(each) for each in (record.command or {}).get("ranges", [])]


def _of_range(found: Mapping[str, Any]) -> str:
    ordinary, other = _ENDS[found["choice"]]
    if "failure" in found:
        return f"The peak is for {ordinary}. That for {other} could not be predicted: {found['failure']}."
    low, high = map(units.about, found["peak_allocated_bytes"])
    return f"The peak may be {low} to {high} GiB: all other figures are for {ordinary}, the other end is {other}."


def package_sentences(record: Record) -> list[str]:
    """Write what the prediction lacks because a package is not installed that every GPU machine has."""
    if record.source == "predicted" and record.environment.get("trl") and not record.environment.get("triton"):
        return [
            "Triton is not installed here. CUDA builds of torch bring it, and TRL's losses take less memory with it: "
            "pip install triton, and predict again."
        ]
    return []


def assumption_sentences(record: Record) -> list[str]:
    """Write which values were assumed, those that decided a branch first; of the others only how many there are."""
    assumed = (record.command or {}).get("assumed", {})
    deciding = sorted((sentence for sentence in assumed if sentence.endswith(DECIDED)), key=assumed.__getitem__)
    sentences = [f"{sentence.removesuffix(DECIDED)}, {_times_of(assumed[sentence])}." for sentence in deciding[::-1]]
    if sentences:
        sentences.insert(0, "These values are not known, were assumed, and decided which way the script went:")
    if others := len(assumed) - len(deciding):
        sentences.append(
            f"At {units.counted(others, 'place')} it read values that are not known, without a condition on them."
        )
    return sentences


def _times_of(times: int) -> str:
    return f"{times:,} time{'s' * (times != 1)}"


def _ended(rank: Mapping[str, Any]) -> str | None:
    return (rank["attached"] or {}).get("ended")


def _over_ranks(epochs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Join what the traced ranks read, with the dearest batches of all of them: shares of an epoch are added up."""
    joined: dict[tuple, Mapping[str, Any]] = {}
    numbers: Counter[int] = Counter()
    for epoch in epochs:
        if epoch.get("is_shared"):
            numbers[epoch["read_by"]] += 1
            key: tuple = epoch["purpose"], numbers[epoch["read_by"]]
        else:
            key = tuple(epoch[name] for name in ("purpose", "batches", "batches_read", "failure", "is_run_whole"))
        joined[key] = _with_share(joined[key], epoch) if key in joined else epoch
    return list(joined.values())


_OF_ALL_RANKS = ("batches", "batches_read", "batches_in_reach", "ranks", "ranks_read")


def _with_share(known: Mapping[str, Any], epoch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add what another rank read of an epoch."""
    dearest = [*known["dearest"], *epoch["dearest"]]
    if not epoch.get("is_shared"):
        return {**known, "dearest": dearest, "ranks": max(known.get("ranks", 1), epoch.get("ranks", 1))}
    added = {key: None if None in (known[key], epoch[key]) else known[key] + epoch[key] for key in _OF_ALL_RANKS}
    is_whole = known["is_run_whole"] or epoch["is_run_whole"]
    seconds = max(known["seconds"], epoch["seconds"])
    return {**known, **added, "dearest": dearest, "seconds": seconds, "is_run_whole": is_whole}


def _of_epoch(epoch: Mapping[str, Any]) -> Iterator[str]:
    yield _read_of(epoch, _READ[epoch["purpose"]], f"{epoch['batches_read']:,} batches")
    if epoch["failure"] is None and not epoch.get("is_shared") and epoch.get("ranks", 1) > 1:
        yield "The loader does not show which batches other ranks read: those of one rank were read."
    if epoch["is_run_whole"]:
        yield f"Memory grows from batch to batch of {_READ[epoch['purpose']]}, so all of it was run."
    for batch in epoch["dearest"]:
        yield _of_batch(batch)


def _read_of(epoch: Mapping[str, Any], what: str, read: str) -> str:
    """Write how much of an epoch was read ahead. ``what``: its name, ``read``: the number of batches."""
    ranks, total, seconds = epoch.get("ranks_read", 1), epoch["batches"], f"{epoch['seconds']:.0f} s"
    if epoch["failure"]:
        return f"The batches of {what} could not be read ahead ({epoch['failure']}): only the first ones were run."
    if epoch["is_stream"] and total is None:
        return (
            f"The data of {what} is a stream: its first {read} were read ahead in {seconds}. What comes later is not "
            "seen."
        )
    if total is not None and epoch["batches_read"] >= total:
        rest = "" if epoch["dearest"] or epoch["is_run_whole"] else ": none is dearer than the first ones"
        return f"All {read} of {what}{_for(ranks)} were read ahead{rest}."
    in_reach = epoch.get("batches_in_reach", total)
    over = f" over {in_reach:,} of them" if total is None or in_reach < total else ""
    of_ranks = f" ({ranks:,} of {epoch['ranks']:,} ranks)" if ranks < epoch.get("ranks", 1) else ""
    of = f"of {total:,}" if total is not None else "of an unknown number"
    return (
        f"Of {what}{_for(epoch.get('ranks', 1))}, {read} {of} were read ahead in {seconds}, spread evenly{over}"
        f"{of_ranks}: a dearer one may be among the others."
    )


def _for(ranks: int) -> str:
    return f" of {ranks:,} ranks" if ranks > 1 else ""


def _of_batch(batch: Mapping[str, Any]) -> str:
    shapes = ", ".join(f"{name} {_times(shape)}".strip() for name, shape in batch["shapes"].items())
    place = f"batch {batch['batch']:,}" + (f" of rank {batch['rank']}" if batch["rank"] else "")
    if batch["run_as_step"] is None:
        return f"The evaluation ran its dearest batch, {place}: {shapes}."
    return (
        f"Step {batch['run_as_step']} here is step {batch['step']:,} of epoch {batch['epoch']} with a dearest batch, "
        f"{place}: {shapes}."
    )


def _times(shape: Sequence[int]) -> str:
    return " x ".join(f"{size:,}" for size in shape)
