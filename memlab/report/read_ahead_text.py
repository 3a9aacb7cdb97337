"""Terminal output about the batches that a predicted command read ahead, and those of them that it ran."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memlab.core.record import Record

_READ = {"training": "the epoch", "evaluation": "the evaluation"}


def read_ahead_sentences(record: Record) -> list[str]:
    """Write which batches were run, which were only read, and what nobody has seen."""
    if "epochs" not in (record.command or {}):
        return []
    sentences = [sentence for epoch in record.command["epochs"] for sentence in _of_epoch(epoch)]
    if record.command["steps"] is None and any(_ended(rank) == "stopped" for rank in record.ranks):
        steps = max((rank["attached"] or {}).get("steps", 0) for rank in record.ranks)
        sentences.append(
            f"The script's training goes on after {steps} steps and was stopped there: what follows it (a last "
            "evaluation, a last saving) is not predicted."
        )
    return list(dict.fromkeys(sentences))


def _ended(rank: Mapping[str, Any]) -> str | None:
    return (rank["attached"] or {}).get("ended")


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
