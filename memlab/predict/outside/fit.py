"""``python -m memlab.predict.outside.fit READINGS.csv``: fit the sizes of what lies outside torch's allocator.

The readings are those of measured runs on one GPU (results/explain/readings.py). Between two of them one thing has
appeared, or few. A size is the median over the readings in which it is alone; NCCL's sizes are least squares over the
sums of each rank's collectives.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from memlab.core.sizes import MIB
from memlab.files.json_file import write_json
from memlab.predict.outside.sizes import PIECE, SHIPPED, NcclSizes, Size, Sizes

LEAST = MIB
"""Growth in bytes below which a reading shows nothing: the driver gives memory in pieces of 2 MiB."""

ATTENTION_LEAST = 6 * MIB
"""Growth from which on a reading in the first forward or backward is attention's kernels; others take 2 or 4 MiB."""

ALIKE = 4 * MIB
"""Largest distance from the median of a reading that agrees with it."""

CONNECTS = "eager_connect"
"""Beginning of the name of the call with which NCCL connects a group before its first collective."""


class Growth(NamedTuple):
    """What a reading grew by. ``call``: empty unless it has a name."""

    phase: str
    call: str
    handle: bool
    nbytes: int

    @property
    def is_collective(self) -> bool:
        return bool(self.call) and self.call not in ("set_device", "_apply", "parameter")


class Rank:
    """The readings of one rank, in groups of those that show the same thing."""

    def __init__(self, growths: Sequence[Growth], ranks: int):
        self.ranks = ranks
        self.first, *rest = growths
        rest = [growth for growth in rest if growth.nbytes >= LEAST]
        self.collectives = [growth for growth in growths if growth.is_collective]
        self.handles = [growth for growth in rest if growth.handle]
        kernels = [index for index, growth in enumerate(rest) if not (growth.handle or growth.is_collective)]
        first_handle = next((index for index, growth in enumerate(rest) if growth.handle), len(rest))
        first_call = next((index for index, growth in enumerate(rest) if growth.is_collective), len(rest))
        self.before = [rest[index] for index in kernels if index < min(first_handle, first_call)]
        self.after = [rest[index] for index in kernels if index > first_handle]
        self.begins_with_context = self.first.call == "set_device"


def fit(ranks: Sequence[Rank], gpu: str, versions: str, source: str) -> Sizes:
    """Compute the sizes. Raises ``ValueError`` where no rank shows one of them."""
    contexts = _size(rank.first.nbytes for rank in ranks if rank.begins_with_context)
    first_kernel = _size(rank.before[0].nbytes for rank in ranks if rank.begins_with_context and rank.before)
    stream = _size(rank.before[1].nbytes for rank in ranks if len(rank.before) > 1)

    def handles(phase: str) -> Size:
        return _size(growth.nbytes for rank in ranks for growth in rank.handles if growth.phase == phase)

    def attention(phase: str) -> Size:
        large = [each for rank in ranks for each in rank.after if each.nbytes >= ATTENTION_LEAST]
        return _size(each.nbytes for each in large if each.phase == phase)

    small = [[each.nbytes for each in rank.after if each.nbytes < ATTENTION_LEAST] for rank in ranks]
    known = contexts.nbytes, first_kernel.nbytes, stream.nbytes
    return Sizes(
        gpu=gpu,
        versions=versions,
        source=source,
        context=contexts,
        first_kernel=first_kernel,
        stream=stream,
        handle_in_forward=handles("first_forward"),
        handle_in_backward=handles("first_backward"),
        attention_forward=attention("first_forward"),
        attention_backward=attention("first_backward"),
        further_kernels=_size(map(sum, small)),
        nccl_alone=_nccl([rank for rank in ranks if rank.ranks == 1], *known),
        nccl=_nccl([rank for rank in ranks if rank.ranks > 1], *known),
    )


def _size(found: Iterable[int]) -> Size:
    values = list(found)
    middle = int(median(values))
    return Size(middle, len(values), sum(abs(value - middle) <= ALIKE for value in values))


def _nccl(ranks: Sequence[Rank], context: int, first_kernel: int, stream: int) -> NcclSizes:
    rows, sums = [], []
    for rank in ranks:
        used = {_group(growth.call) for growth in rank.collectives if not growth.call.startswith(CONNECTS)}
        connected = sum(growth.call.startswith(CONNECTS) for growth in rank.collectives)
        with_context = rank.first.is_collective
        if used and (with_context or abs(rank.first.nbytes - context) <= ALIKE):
            rest = [growth.nbytes for growth in rank.collectives]
            others = context * with_context + (0 if rank.before else first_kernel) + stream * (len(rank.before) < 2)
            rows.append((1, max(connected, len(used)), len(used)))
            sums.append(sum(rest) - others)
    solved, *_ = np.linalg.lstsq(np.array(rows, float), np.array(sums, float), rcond=None)
    error = np.abs(np.array(rows) @ solved - sums).max()
    library, communicator, collective = (round(value / PIECE) * PIECE for value in solved.tolist())
    return NcclSizes(library, communicator, collective, len(rows), round(float(error)))


def _group(call: str) -> str:
    return call.partition(" of ")[2]


def read_ranks(path: Path, without: str = "") -> list[Rank]:
    """Read the readings of all ranks from a table. ``without``: a run that is left out."""
    rows: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows[row["run"], row["rank"]].append(row)
    return [Rank(list(_growths(own)), int(own[0]["ranks"])) for (run, _), own in rows.items() if run != without]


def _growths(rows: Sequence[dict[str, str]]) -> Iterator[Growth]:
    last = 0
    for row in rows:
        now = int(row["outside_bytes"])
        yield Growth(row["phase"], row["call"], row["handle"] == "1", now - last)
        last = now


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m memlab.predict.outside.sizes", description=__doc__)
    parser.add_argument("readings", type=Path, metavar="READINGS.csv")
    parser.add_argument("--gpu", required=True, help="the GPU that was measured, by its name in NVML")
    parser.add_argument("--versions", required=True, help="of the driver and of torch, as text")
    parser.add_argument("--output", type=Path, default=SHIPPED, metavar="FILE")
    arguments = parser.parse_args()
    found = fit(read_ranks(arguments.readings), arguments.gpu, arguments.versions, str(arguments.readings.parent))
    write_json(arguments.output, asdict(found))


if __name__ == "__main__":
    main()
