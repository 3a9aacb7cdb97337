"""Reads the batches of an epoch ahead, with a script's own loader and collator, and keeps their shapes alone.

All of it happens in copies of this process, so that the random state, the samplers and the files of the script stay as
they were.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import gcd
from typing import Any

import torch
from torch.utils.data import DataLoader

from memlab.predict.trace.epoch_batches import READING, Batch, ReadAhead
from memlab.predict.trace.shadow import forked_copy

MOST_SECONDS = 20.0
MOST_BATCHES = 100_000
"""An epoch is read ahead until all of it, so many batches or so many seconds are read."""

PROGRESS_S = 2.0

_SHARES = (("rank", "num_replicas"), ("process_index", "num_processes"))
"""Attributes of samplers and datasets that give each rank its share: torch's and DeepSpeed's, accelerate's."""

IGNORED = -100
"""Label that no loss counts."""


def read_ahead(
    loader: DataLoader, own_indices: Iterator, fetcher: Any, own_rank: int, ranks: Sequence[int], most: int | None
) -> ReadAhead:
    """Read the epoch of ``loader`` that ``own_indices`` begins, as each of ``ranks`` would.

    ``most``: batches of a rank that the script can use, if that is known. Batches come in an order that is spread over
    the epoch, because time may end before the batches do.
    """
    most, began = min(most or MOST_BATCHES, MOST_BATCHES), time.monotonic()
    try:
        if loader._dataset_kind == torch.utils.data.dataloader._DatasetKind.Iterable:
            batches, total = forked_copy.call(lambda: _of_stream(own_indices, fetcher, own_rank, most), MOST_SECONDS)
            return ReadAhead(batches, {}, total, time.monotonic() - began)
        indices: dict[int, Sequence] = {}
        for rank in ranks if _has_share(loader) else (own_rank,):
            indices[rank] = forked_copy.call(
                partial(_first_indices, loader, own_indices, rank, own_rank, most), MOST_SECONDS
            )
        batches = forked_copy.call(lambda: _of_samples(indices, fetcher), MOST_SECONDS)
        return ReadAhead(batches, indices, sum(map(len, indices.values())), time.monotonic() - began)
    except RuntimeError as error:
        return ReadAhead(seconds=time.monotonic() - began, failure=str(error))


def _first_indices(loader: DataLoader, own_indices: Iterator, rank: int, own_rank: int, most: int) -> list:
    """The samples of each batch of ``rank``, at most of ``most`` batches. Changes the loader: runs in a copy."""
    if rank == own_rank:
        return list(islice(own_indices, most))
    for part, name in _shares(loader):
        setattr(part, name, rank)
    return list(islice(iter(loader._index_sampler), most))


def _has_share(loader: DataLoader) -> bool:
    return any(True for _ in _shares(loader))


def _shares(loader: DataLoader) -> Iterator[tuple[Any, str]]:
    """Yield the parts of a loader that give this rank its share, each with its attribute for the rank."""
    parts, part = [loader.sampler], loader.batch_sampler
    while part is not None and len(parts) < 8:  # samplers in samplers
        parts += [part, getattr(part, "sampler", None)]
        part = getattr(part, "batch_sampler", None)
    for each in {id(part): part for part in parts}.values():
        for rank, number in _SHARES:
            if hasattr(each, rank) and hasattr(each, number):
                yield each, rank


def _of_samples(indices: Mapping[int, Sequence], fetcher: Any) -> list[Batch]:
    """Read batches of a dataset whose samples have numbers. Runs in a copy."""
    places = [(rank, index) for rank, batches in indices.items() for index in range(len(batches))]
    found: list[Batch] = []
    progress = _Progress(len(places))
    for rank, index in _spread(places):
        if progress.time_is_up(len(found)):
            break
        found.append(_batch(rank, index, fetcher.fetch(indices[rank][index])))
    return found


def _of_stream(own_indices: Iterator, fetcher: Any, rank: int, most: int) -> tuple[list[Batch], int | None]:
    """Read batches of a stream; return them, and their number if the stream has ended. Runs in a copy."""
    found: list[Batch] = []
    progress = _Progress(None)
    while len(found) < most:
        if progress.time_is_up(len(found)):
            return found, None
        try:
            found.append(_batch(rank, len(found), fetcher.fetch(next(own_indices))))
        except StopIteration:
            break
    return found, len(found)


def _spread(places: Sequence) -> Iterator:
    """Yield all places, so that those yielded so far are always spread evenly (steps of the golden ratio)."""
    number = len(places)
    step = next((each for each in range(int(number * 0.618), number) if gcd(each, number) == 1), 1)
    return (places[at * step % number] for at in range(number))


class _Progress:
    """Says on standard error how far reading is."""

    def __init__(self, of: int | None):
        self._of = "" if of is None else f" of {of:,}"
        self._began = self._said = time.monotonic()

    def time_is_up(self, done: int) -> bool:
        now = time.monotonic()
        if now - self._said > PROGRESS_S:
            self._said = now
            print(f"memlab: {done:,}{self._of} {READING}", file=sys.stderr, flush=True)
        return now - self._began > MOST_SECONDS


def _batch(rank: int, index: int, batch: Any) -> Batch:
    shapes = sorted(_shapes("", batch))
    padded = [(name, shape) for name, shape in shapes if len(shape) > 1]  # without lengths and ends of packed samples
    return Batch(rank, index, tuple(padded or shapes), sum(_labels("", batch)))


def _shapes(name: str, value: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each tensor of a batch. Samples that are not collated count as one padded tensor."""
    if isinstance(value, torch.Tensor):
        yield name, tuple(value.shape)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _shapes(f"{name}.{key}".lstrip("."), part)
    elif isinstance(value, list | tuple) and value:
        if all(isinstance(sample, Mapping) for sample in value):
            for key in value[0]:
                yield f"{name}.{key}".lstrip("."), (len(value), max(_extent(sample.get(key)) for sample in value))
        elif any(isinstance(part, torch.Tensor | Mapping | list | tuple) for part in value):
            for number, part in enumerate(value):
                yield from _shapes(f"{name}.{number}".lstrip("."), part)
        else:
            yield name, (len(value), max(map(_extent, value)))


def _extent(value: Any) -> int:
    """The length of a sample's part: characters, numbers or elements."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, Mapping):
        return sum(map(_extent, value.values()))
    return sum(map(_extent, value)) if isinstance(value, list | tuple) else 1


def _labels(name: str, value: Any) -> Iterator[int]:
    if isinstance(value, torch.Tensor) and name.endswith("labels"):
        yield int((value != IGNORED).sum())
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _labels(str(key), part)
