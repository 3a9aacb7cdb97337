"""Fit of the sizes of what lies outside torch's allocator to the readings of runs.

The readings are those of runs on one GPU (memlab/analyse/explain/readings.py). Between two of them one thing has
appeared, or few. A size is the median over the readings in which it is alone; NCCL's sizes are least squares over the
sums of each rank's collectives.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from memlab.core.config import Config
from memlab.core.errors import MemlabError
from memlab.core.grouping import grouped
from memlab.core.sizes import MIB
from memlab.simulator.outside.parts import PIECE, NcclSizes, Size, Sizes, shipped

LARGE = 6 * MIB
"""Growth from which on a reading shows something with a size of its own; further kernels take 2 or 4 MiB."""

ALIKE = 4 * MIB
"""Largest distance from the median of a reading that agrees with it."""

CONTEXT_WITHOUT_KERNEL = ("set_device", "parameter")
"""Calls that can make a context and run no kernel. Another call that can, ``Module._apply``, may run one."""

CONNECTS = "eager_connect"
"""Beginning of the name of the call with which NCCL connects a group before its first collective."""


class ReadingGrowth(NamedTuple):
    """What a reading grew by. ``call``: empty unless it has a name."""

    phase: str
    call: str
    handle: bool
    nbytes: int

    @property
    def is_collective(self) -> bool:
        return " of " in self.call  # a group

    @property
    def is_kernels(self) -> bool:
        return not self.handle and self.call in ("", "_apply", *CONTEXT_WITHOUT_KERNEL)


class Rank:
    """The readings of one rank. ``before``: large growth by kernels before the first product or collective, that of the
    first kernels and of a stream. ``after``: growth by kernels after the first product."""

    def __init__(self, growths: Sequence[ReadingGrowth], ranks: int):
        self.ranks = ranks
        self.first, *rest = growths
        self.collectives = [growth for growth in growths if growth.is_collective]
        self.handles = [growth for growth in rest if growth.handle]
        first_product = next((index for index, growth in enumerate(rest) if growth.handle), len(rest))
        until = next((index for index, growth in enumerate(rest) if growth.handle or growth.is_collective), len(rest))
        self.before = [growth.nbytes for growth in rest[:until] if growth.is_kernels and growth.nbytes >= LARGE]
        self.after = [growth for growth in rest[first_product:] if growth.is_kernels]
        if not self.before and until == first_product:  # then the first kernels came with the first module
            late = next((growth for growth in self.after if growth.nbytes >= LARGE), None)
            self.before = [late.nbytes] if late else []
            self.after = [growth for growth in self.after if growth is not late]
        self.begins_with_context = self.first.call in CONTEXT_WITHOUT_KERNEL


def fit(ranks: Sequence[Rank], gpu: str, versions: str, source: str, otherwise: Sizes | None = None) -> Sizes:
    """Compute the sizes. ``otherwise``: has those that no rank shows.

    Raises :class:`MemlabError` where neither has one.
    """

    def handles(phase: str) -> list[int]:
        return [growth.nbytes for rank in ranks for growth in rank.handles if growth.phase == phase]

    def attention(phase: str) -> list[int]:
        return [each.nbytes for rank in ranks for each in rank.after if each.nbytes >= LARGE and each.phase == phase]

    begun = [rank for rank in ranks if rank.begins_with_context]
    small = [[each.nbytes for each in rank.after if each.nbytes < LARGE] for rank in ranks if rank.handles]
    found = {
        "context": [rank.first.nbytes for rank in begun],
        "first_kernel": [rank.before[0] for rank in begun if rank.before],
        "stream": [rank.before[1] for rank in ranks if len(rank.before) > 1],
        "handle_in_forward": handles("first_forward"),
        "handle_in_backward": handles("first_backward"),
        "attention_forward": attention("first_forward"),
        "attention_backward": attention("first_backward"),
        "further_kernels": list(map(sum, small)),
    }
    sizes = {name: _size(name, nbytes, getattr(otherwise, name, None)) for name, nbytes in found.items()}
    alone, several = ([rank for rank in ranks if (rank.ranks == 1) == is_alone] for is_alone in (True, False))
    return Sizes(
        gpu=gpu,
        versions=versions,
        source=source,
        **sizes,
        nccl_alone=_nccl(alone, sizes, otherwise.nccl_alone if otherwise else None),
        nccl=_nccl(several, sizes, otherwise.nccl if otherwise else None),
    )


def _size(name: str, found: Sequence[int], otherwise: Size | None) -> Size:
    if found:
        middle = int(median(found))
        return Size(middle, len(found), sum(abs(nbytes - middle) <= ALIKE for nbytes in found))
    if otherwise is None:
        raise MemlabError(f"No reading shows {name.replace('_', ' ')}.")
    return otherwise


def _nccl(ranks: Sequence[Rank], sizes: Mapping[str, Size], otherwise: NcclSizes | None) -> NcclSizes:
    """Solve for the sizes that are nearest to those of ``otherwise``, or to 0, where the ranks leave a choice.
    ``sizes``: of context, first kernel and stream."""
    context, first_kernel, stream = (sizes[name].nbytes for name in ("context", "first_kernel", "stream"))
    rows, sums = [], []
    for rank in ranks:
        used = {growth.call.partition(" of ")[2] for growth in rank.collectives if not growth.call.startswith(CONNECTS)}
        connected = sum(growth.call.startswith(CONNECTS) for growth in rank.collectives)
        with_context = rank.first.is_collective
        if used and (with_context or abs(rank.first.nbytes - context) <= ALIKE):
            others = context * with_context + (0 if rank.before else first_kernel) + stream * (len(rank.before) < 2)
            rows.append((1, max(connected, len(used)), len(used)))
            sums.append(sum(growth.nbytes for growth in rank.collectives) - others)
    if not rows and otherwise is not None:
        return otherwise
    near = (otherwise.library, otherwise.communicator, otherwise.collective) if otherwise else (0, 0, 0)
    counts = np.array(rows, float).reshape(-1, 3)
    moved, *_ = np.linalg.lstsq(counts, np.array(sums) - counts @ near, rcond=None)
    error = np.abs(counts @ (near + moved) - sums).max(initial=0)
    library, communicator, collective = (round(value / PIECE) * PIECE for value in (near + moved).tolist())
    return NcclSizes(library, communicator, collective, len(rows), round(float(error)))


def read_ranks(path: Path) -> list[Rank]:
    """Read the readings of all ranks from a table. Raises :class:`MemlabError` for any other file."""
    try:
        with path.open(encoding="utf-8") as file:
            rows = grouped(csv.DictReader(file), lambda row: (row["run"], row["rank"]))
        if not rows:
            raise ValueError("no rows")
        return [Rank(_growths(own), int(own[0]["ranks"])) for own in rows.values()]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise MemlabError(
            f"{path}: not the readings of measured runs ({type(error).__name__}: {error}). Write them with: python -m "
            "memlab.analyse.explain.readings RUN_FOLDER... > readings.csv"
        ) from None


@cache
def sizes_from(path: str | None) -> Sizes:
    """Return the shipped sizes, or those of the readings in a file, with the shipped ones for what they do not show.

    Raises :class:`MemlabError` for a file without readings.
    """
    if path is None:
        return shipped()
    source = f"{path}; what it does not show, in {shipped().source} ({shipped().gpu})"
    return fit(read_ranks(Path(path)), "", "", source, otherwise=shipped())


def check_sizes(configs: Iterable[Config]) -> None:
    """Raise :class:`MemlabError` where ``predict.outside`` is no file of readings."""
    for config in configs:
        sizes_from(config.predict.outside)


def _growths(rows: Sequence[dict[str, str]]) -> list[ReadingGrowth]:
    pairs = zip(rows, pairwise([0, *(int(row["outside_bytes"]) for row in rows)]), strict=True)
    return [ReadingGrowth(row["phase"], row["call"], row["handle"] == "1", now - last) for row, (last, now) in pairs]
