"""Batches of an epoch by their shapes, and which of them need the most memory. Plain data, no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from operator import attrgetter
from typing import Any

from memlab.core.grouping import grouped
from memlab.core.value_types import AtLeastOne, Count

MOST_WINDOWS = 3
"""Optimizer steps that are brought forward at most, one for each distinct dearest shape."""

READING = "batches of the epoch read ahead"
"""End of the lines that say how far reading is, in the output of the command."""


@dataclass(frozen=True)
class CollatedBatch:
    """One batch after collation. ``rank``: whose loader gives it. ``index``: its place in that rank's epoch, from 0.
    ``shapes``: name and shape of each tensor. ``labels``: number of labels that count in the loss."""

    rank: int
    index: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    labels: int = 0

    @property
    def elements(self) -> int:
        """Elements of all tensors, with padding."""
        return sum(prod(shape) for _, shape in self.shapes)

    @property
    def pairs(self) -> int:
        """Pairs of positions, which attention may hold in memory: elements of each tensor times its last dimension."""
        return sum(prod(shape) * shape[-1] for _, shape in self.shapes if shape)

    @property
    def padded_labels(self) -> int:
        """Elements of the labels: each has logits."""
        return sum(prod(shape) for name, shape in self.shapes if name.endswith("labels"))


_MEASURES = attrgetter("elements"), attrgetter("pairs"), attrgetter("padded_labels")
"""What memory grows with: activations, scores of attention, logits."""


@dataclass
class ReadAhead:
    """What was read of an epoch. ``indices``: rank -> samples of each of its batches; empty for a stream, whose samples
    have no numbers. ``total``: batches of the epoch, of all ranks whose share is known; ``None``: not known. ``ranks``:
    ranks that the reading one stands for. ``is_shared``: whether the loader shows the share of each. ``failure``: why
    reading ended early."""

    batches: Sequence[CollatedBatch] = ()
    indices: Mapping[int, Sequence] = field(default_factory=dict)
    total: int | None = None
    ranks: int = 1
    is_shared: bool = False
    seconds: float = 0.0
    failure: str | None = None

    @property
    def ranks_read(self) -> int:
        """Ranks whose batches could be read."""
        return len(self.indices) or 1

    @property
    def in_reach(self) -> int:
        """Batches over which those that were read are spread."""
        return sum(map(len, self.indices.values())) or len(self.batches)

    def first(self, most: int) -> "ReadAhead":
        """Return what was read of the first ``most`` batches of each rank."""
        batches = [batch for batch in self.batches if batch.index < most]
        total = most * (self.ranks if self.is_shared else 1)
        is_known = self.total is not None or len(batches) == total
        return replace(
            self,
            batches=batches,
            indices={rank: samples[:most] for rank, samples in self.indices.items()},
            total=min(total, self.total or total) if is_known else None,
        )


@dataclass(frozen=True)
class Window:
    """The batches of an optimizer step that contains one of the largest batches of the epoch, ``dearest``."""

    dearest: CollatedBatch
    first: int  # index of the window's first batch in the epoch of its rank


def dearest_windows(
    batches: Sequence[CollatedBatch], own_rank: int, done: int, window: int, labels_matter: bool = False
) -> list[Window]:
    """Choose the optimizer steps that need the most memory, in the order of the epoch.

    ``window``: batches of an optimizer step; the first of them meets no gradients, so the dearest of the first ones and
    of the others are chosen apart. Shapes that the first ``done`` batches of ``own_rank`` have shown are left out.
    ``labels_matter``: of equal shapes, those with more labels that count may need more.
    """

    def is_first(batch: CollatedBatch) -> bool:
        return batch.index % window == 0

    def kind(batch: CollatedBatch) -> tuple:
        return batch.shapes, is_first(batch), batch.labels if labels_matter else 0

    shown = {kind(batch) for batch in batches if batch.rank == own_rank and batch.index < done}
    chosen: dict[tuple[int, int], Window] = {}
    for measure in _MEASURES:
        for candidates in grouped(sorted(batches, key=is_first), is_first).values():
            best = max(candidates, key=lambda batch: (measure(batch), batch.elements, batch.labels, -batch.index))
            first = best.index // window * window
            if kind(best) not in shown and len(chosen) < MOST_WINDOWS:
                chosen.setdefault((best.rank, first), Window(best, first))
                shown.add(kind(best))
    return sorted(chosen.values(), key=lambda window: (window.first, window.dearest.rank))


@dataclass(frozen=True)
class EpochOrder:
    """The whole epoch of a rank as a sequence of windows, and which of them ran.

    ``sizes``: of each distinct window, for each of its batches what memory grows with (``_MEASURES``, and the number of
    labels where tensors have that size). ``order``: place in the epoch, from 0, and index in ``sizes`` of each window
    that was read. ``ran``: the same of those that ran, in the order in which they ran: the first ``given`` windows of
    the epoch, those with its dearest batches, an ordinary one, and the last one if its last batch is smaller.
    ``windows``: of the epoch. ``steps``: optimizer steps of a window, ``steps_before``: of the run before the epoch.
    ``every``: phase -> number of steps after which a Trainer runs the phase again; ``None``: not known. ``is_random``:
    another run has another order.
    """

    sizes: list[list[list[Count]]]
    order: list[list[Count]]
    ran: list[list[Count]]
    given: Count
    windows: Count
    steps: AtLeastOne
    steps_before: Count
    every: dict[str, AtLeastOne] | None
    is_random: bool

    @classmethod
    def of(
        cls, read: ReadAhead, own_rank: int, window: int, ran: Sequence[tuple[int, int]], **facts: Any
    ) -> "EpochOrder | None":
        """Describe the epoch of ``own_rank``; ``None`` if a window that ran was not read.

        ``window``: its batches. ``ran``: rank and first batch of the windows that ran. ``facts``: all other fields, and
        ``labels_matter`` as for :func:`dearest_windows`.
        """
        in_order = sorted(read.batches, key=lambda batch: (batch.rank, batch.index))
        batches = grouped(in_order, lambda batch: (batch.rank, batch.index // window))
        labels = facts.pop("labels_matter")
        whole = {
            place: tuple((*(measure(batch) for measure in _MEASURES), batch.labels * labels) for batch in each)
            for place, each in batches.items()
            if len(each) == window
        }
        places = [(rank, first // window) for rank, first in ran]
        if not all(place in whole for place in places):
            return None
        numbers = {sizes: number for number, sizes in enumerate(dict.fromkeys(whole.values()))}
        return cls(
            sizes=[list(map(list, sizes)) for sizes in numbers],
            order=[[place, numbers[sizes]] for (rank, place), sizes in whole.items() if rank == own_rank],
            ran=[[place[1], numbers[whole[place]]] for place in places],
            windows=len(read.indices.get(own_rank, read.batches)) // window,
            **facts,
        )

    @property
    def shuffles_sizes(self) -> bool:
        """Whether the windows before the last one differ in sizes. The last one keeps its place in every order: its
        last batch has the samples that are left."""
        return len({number for place, number in self.order if place < self.windows - 1}) > 1

    def check(self) -> None:
        """Raise ``ValueError`` if a window has no sizes, or if too few windows ran."""
        lengths = {len(sizes) for sizes in self.sizes} | {-len(batch) for sizes in self.sizes for batch in sizes}
        if len(lengths) != 2 or any(len(pair) != 2 or pair[1] >= len(self.sizes) for pair in (*self.order, *self.ran)):
            raise ValueError("the order of the epoch names windows without sizes")
        if not 0 < self.given < len(self.ran):
            raise ValueError("the order of the epoch names too few windows that ran")


@dataclass(frozen=True)
class ShortEpoch:
    """What was read of an epoch, and what is run of it.

    ``given``: batches that are run first. ``dearest``: the windows that are run after them. ``per_step``: batches of an
    optimizer step. ``first_step``: the number that the first optimizer step of the windows gets in the shortened run;
    ``None``: an evaluation. ``steps``: optimizer steps of a window. ``is_whole``: all batches are run.
    """

    purpose: str
    read_by: int  # rank
    read: ReadAhead
    given: int
    dearest: Sequence[Window] = ()
    per_step: int = 1
    first_step: int | None = None
    steps: int = 1
    is_whole: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the entry of ``Trace.epochs``."""
        return {
            "purpose": self.purpose,
            "read_by": self.read_by,
            "batches": self.read.total,
            "batches_read": len(self.read.batches),
            "batches_in_reach": self.read.in_reach,
            "ranks": self.read.ranks,
            "ranks_read": self.read.ranks_read,
            "is_shared": self.read.is_shared,
            "seconds": round(self.read.seconds, 3),
            "failure": self.read.failure,
            "is_stream": not self.read.indices and self.read.failure is None,
            "is_run_whole": self.is_whole,
            "batches_run_first": self.given,
            "batches_per_step": self.per_step,
            "dearest": [self._place(number, window) for number, window in enumerate(self.dearest)],
        }

    def _place(self, number: int, window: Window) -> dict[str, Any]:
        """Return where a dearest batch is, in its epoch and in the shortened run. ``number``: of its window, from 0."""
        batch, step, run_as = window.dearest, None, None
        if self.first_step is not None:
            step = batch.index // self.per_step + 1
            run_as = self.first_step + number * self.steps + (batch.index - window.first) // self.per_step
        return {
            "rank": batch.rank,
            "epoch": 1,
            "batch": batch.index + 1,
            "step": step,
            "run_as_step": run_as,
            "shapes": dict(batch.shapes),
        }
