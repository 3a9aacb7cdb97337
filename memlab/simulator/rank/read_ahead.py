"""Reads the batches of an epoch ahead, with a script's own loader and collator, and keeps their shapes alone.

All of it happens in copies of this process, so that the random state, the samplers and the files of the script stay as
they were.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from math import gcd
from typing import Any

import torch
from torch.utils.data import DataLoader

from memlab.simulator.rank import forked_copy
from memlab.simulator.trace.epoch_batches import READING, CollatedBatch, ReadAhead

MOST_SECONDS = 20.0
"""Seconds after which reading ends, over all ranks."""

MOST_SECONDS_OF_INDICES = MOST_SECONDS / 2
"""Seconds after which the samplers of no further rank are asked for the samples of its batches."""

MOST_BATCHES = 100_000
"""Batches that are read at most, of all ranks together."""

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
    began = time.monotonic()
    deadline, read = began + MOST_SECONDS, ReadAhead(ranks=len(ranks))
    try:
        if loader._dataset_kind == torch.utils.data.dataloader._DatasetKind.Iterable:
            of_stream = partial(_of_stream, own_indices, fetcher, own_rank, most, deadline)
            read.batches, read.total = forked_copy.call(of_stream, MOST_SECONDS)
        else:
            read.is_shared = any(True for _ in _shares(loader))
            sharing = ranks if read.is_shared else (own_rank,)
            read.indices = _indices(loader, own_indices, own_rank, sharing, most, began + MOST_SECONDS_OF_INDICES)
            read.total = _number_of_batches(loader, read.indices, sharing, most)
            of_samples = partial(_of_samples, read.indices, fetcher, deadline)
            read.batches = forked_copy.call(of_samples, deadline - time.monotonic())
    except RuntimeError as error:
        read = ReadAhead(ranks=len(ranks), failure=str(error))
    read.seconds = time.monotonic() - began
    return read


def _indices(
    loader: DataLoader, own_indices: Iterator, own_rank: int, ranks: Sequence[int], most: int | None, deadline: float
) -> dict[int, list]:
    """List the samples of each batch: of ``own_rank``, then of other ranks until time or batches are up."""
    found: dict[int, list] = {}
    left = MOST_BATCHES
    for rank in (own_rank, *_spread([rank for rank in ranks if rank != own_rank])):
        if left and (rank == own_rank or time.monotonic() < deadline):
            wanted = left if most is None else min(most, left)
            of_rank = partial(_indices_of, loader, own_indices, rank, own_rank, wanted, deadline)
            found[rank] = forked_copy.call(of_rank, MOST_SECONDS_OF_INDICES)
            left -= len(found[rank])
    return found


def _indices_of(
    loader: DataLoader, own_indices: Iterator, rank: int, own_rank: int, most: int, deadline: float
) -> list:
    """The samples of each batch of ``rank``, at most of ``most`` batches. Changes the loader: runs in a copy."""
    if rank != own_rank:
        _give_share(loader, rank)
        own_indices = iter(loader._index_sampler)
    return list(takewhile(lambda batch: time.monotonic() < deadline, islice(own_indices, most)))


def _number_of_batches(
    loader: DataLoader, indices: Mapping[int, Sequence], ranks: Sequence[int], most: int | None
) -> int | None:
    """The number of batches of the epoch that the script can use, of all ``ranks``, or ``None``: not known."""
    try:
        numbers = forked_copy.call(lambda: [_length_of(loader, rank) for rank in ranks], MOST_SECONDS)
        return sum(numbers if most is None else (min(number, most) for number in numbers))
    except RuntimeError:  # a sampler without a length: known if all of them have ended
        listed = sum(map(len, indices.values()))
        return listed if len(indices) == len(ranks) and listed < MOST_BATCHES else None


def _length_of(loader: DataLoader, rank: int) -> int:
    """The number of batches of ``rank``. Changes the loader: runs in a copy."""
    _give_share(loader, rank)
    return len(loader._index_sampler)


def _give_share(loader: DataLoader, rank: int) -> None:
    for part, name in _shares(loader):
        setattr(part, name, rank)


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


def _of_samples(indices: Mapping[int, Sequence], fetcher: Any, deadline: float) -> list[CollatedBatch]:
    """Read batches of a dataset whose samples have numbers. Runs in a copy."""
    places = [(rank, index) for rank, batches in indices.items() for index in range(len(batches))]
    found: list[CollatedBatch] = []
    progress = _Progress(len(places), deadline)
    for rank, index in _spread(places):
        if progress.time_is_up(len(found)):
            break
        found.append(_batch(rank, index, fetcher.fetch(indices[rank][index])))
    return found


def _of_stream(
    own_indices: Iterator, fetcher: Any, rank: int, most: int | None, deadline: float
) -> tuple[list[CollatedBatch], int | None]:
    """Read batches of a stream; return them, and their number if the script can use no others. Runs in a copy."""
    found: list[CollatedBatch] = []
    progress = _Progress(None, deadline)
    while len(found) != most:
        if progress.time_is_up(len(found)) or len(found) == MOST_BATCHES:
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
    """Says on standard error how far reading is. ``deadline``: when it ends, on the monotonic clock."""

    def __init__(self, of: int | None, deadline: float):
        self._of = "" if of is None else f" of {of:,}"
        self._deadline, self._said = deadline, time.monotonic()

    def time_is_up(self, done: int) -> bool:
        now = time.monotonic()
        if now - self._said > PROGRESS_S:
            self._said = now
            print(f"memlab: {done:,}{self._of} {READING}", file=sys.stderr, flush=True)
        return now > self._deadline


def _batch(rank: int, index: int, batch: Any) -> CollatedBatch:
    shapes = sorted(_shapes("", batch))
    padded = [(name, shape) for name, shape in shapes if len(shape) > 1]  # without lengths and ends of packed samples
    return CollatedBatch(rank, index, tuple(padded or shapes), sum(_labels("", batch)))


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
