"""Sentences about the batches of an epoch that a predicted command read ahead: how many, and which of them ran."""

from collections.abc import Iterator, Mapping
from typing import Any

from memlab.analyse.extent import over_ranks
from memlab.core.record import Record

_READ = {"training": "the epoch", "evaluation": "the evaluation"}

_TOKENS = ("input_ids", "attention_mask")
"""Tensors whose elements are tokens."""


def read_ahead_sentences(record: Record) -> list[str]:
    """Write which batches were looked at, which of them ran, and what was not looked at."""
    if "epochs" not in (record.command or {}):
        return []
    sentences = [sentence for epoch in over_ranks(record.command["epochs"]) for sentence in _of_epoch(epoch)]
    facts = [rank["attached"] or {} for rank in record.ranks]
    if record.command["steps"] is None and any(each.get("ended") == "stopped" for each in facts):
        steps = max(each.get("steps", 0) for each in facts)
        sentences.append(
            f"The training goes on after {steps} steps and was stopped there: what follows it (a last evaluation, a "
            "last saving) is not predicted."
        )
    return list(dict.fromkeys(sentences))


def _of_epoch(epoch: Mapping[str, Any]) -> Iterator[str]:
    yield f"{_looked_at(epoch)}{_ran(epoch)}."
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


def _ran(epoch: Mapping[str, Any]) -> str:
    """Write which of the batches ran besides the first ones."""
    if epoch["is_run_whole"]:
        return "; all of them ran, because memory grows from batch to batch"
    if not epoch["dearest"]:
        is_whole = epoch["batches"] is not None and epoch["batches_read"] >= epoch["batches"]
        return "; the first ones are the largest" if is_whole and epoch["batches"] > 1 and not epoch["failure"] else ""
    largest = [_batch(batch) for batch in epoch["dearest"]]
    return f"; the largest, {' and '.join(largest)}, {'were' if len(largest) > 1 else 'was'} run"


def _batch(batch: Mapping[str, Any]) -> str:
    """Write ``batch 14 of rank 3 (4 x 1,024 tokens)``."""
    of_tokens = next((name for name in _TOKENS if name in batch["shapes"]), None)
    name = of_tokens or next(iter(batch["shapes"]))
    size = " x ".join(f"{each:,}" for each in batch["shapes"][name])
    shape = f"{size} tokens" if of_tokens else f"{name} {size}".strip()
    rank = f" of rank {batch['rank']}" if batch["rank"] else ""
    return f"batch {batch['batch']:,}{rank} ({shape})"
