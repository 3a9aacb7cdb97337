"""Terminal output about what a predicted command read ahead, and about the values that it could only assume."""

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
    "generation": ("generations as long as they may be", "generations that end with their first token"),
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


def assumption_sentences(record: Record) -> list[str]:
    """Write which values were assumed, those that decided a branch first; of the others only how many there are."""
    assumed = (record.command or {}).get("assumed", {})
    deciding = sorted((sentence for sentence in assumed if sentence.endswith(DECIDED)), key=assumed.__getitem__)
    sentences = [f"{sentence.removesuffix(DECIDED)}, {_times_of(assumed[sentence])}." for sentence in deciding[::-1]]
    if sentences:
        sentences.insert(0, "These values are not known, were assumed, and decided which way the script went:")
    if others := len(assumed) - len(deciding):
        sentences.append(f"At {others} places it read values that are not known, without a condition on them.")
    return sentences


def _times_of(times: int) -> str:
    return f"{times:,} time{'s' * (times != 1)}"


def _ended(rank: Mapping[str, Any]) -> str | None:
    return (rank["attached"] or {}).get("ended")


def _over_ranks(epochs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Join what the traced ranks read alike, with the dearest batches of all of them."""
    joined: dict[tuple, dict[str, Any]] = {}
    for epoch in epochs:
        key = tuple(epoch[name] for name in ("purpose", "batches", "batches_read", "failure", "is_run_whole"))
        known = joined.setdefault(key, {**epoch, "dearest": []})
        known["dearest"] = [*known["dearest"], *epoch["dearest"]]
    return list(joined.values())


def _of_epoch(epoch: Mapping[str, Any]) -> Iterator[str]:
    what, read = _READ[epoch["purpose"]], f"{epoch['batches_read']:,} batches"
    if epoch["failure"]:
        yield f"The batches of {what} could not be read ahead ({epoch['failure']}): only the first ones were run."
    elif epoch["batches"] is None:
        yield (
            f"The data of {what} is a stream: its first {read} were read ahead in {epoch['seconds']:.0f} s. What comes "
            "later is not seen."
        )
    elif epoch["batches_read"] < epoch["batches"]:
        yield (
            f"Of {what}, {read} of {epoch['batches']:,} were read ahead in {epoch['seconds']:.0f} s, spread evenly: a "
            "dearer one may be among the others."
        )
    else:
        rest = "" if epoch["dearest"] or epoch["is_run_whole"] else ": none is dearer than the first ones"
        yield f"All {read} of {what} were read ahead{rest}."
    if epoch["is_run_whole"]:
        yield f"Memory grows from batch to batch of {what}, so all of it was run."
    for batch in epoch["dearest"]:
        yield _of_batch(batch)


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
