"""The device around torch's allocator, after each event of a history: what lies outside, and the driver's figure."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memlab.analyse.explain.accounting import Share
from memlab.analyse.explain.outside import Outside, tree
from memlab.predict.outside.parts import OutsidePart


class Device(Protocol):
    """Sizes in bytes; events are indices in the trace of the history."""

    @property
    def index(self) -> int:
        """Index of the GPU in its process."""

    @property
    def elsewhere(self) -> Mapping[int, int]:
        """Index of each other GPU of the process -> the most bytes that the allocator held there."""

    @property
    def provenance(self) -> str:
        """Where the sizes outside the allocator come from; empty if the run itself was read."""

    @property
    def changes(self) -> Sequence[int]:
        """Events from which :meth:`outside` or :meth:`driver` can differ from before, in order; the first one is 0."""

    def outside(self, event: int) -> tuple[Share, ...]:
        """Return the memory outside the allocator after an event, in parts."""

    def driver(self, event: int) -> int | None:
        """Return the driver's figure after an event; ``None`` in a prediction."""


@dataclass(frozen=True)
class ModelledDevice:
    """The device of a prediction. ``parts``: what comes outside the allocator. ``provenance``: of their sizes."""

    parts: Sequence[OutsidePart]
    provenance: str = ""
    index: int = 0
    elsewhere: Mapping[int, int] = field(default_factory=dict)

    @property
    def changes(self) -> Sequence[int]:
        return sorted({0, *(part.event for part in self.parts)})

    def outside(self, event: int) -> tuple[Share, ...]:
        there = [part for part in self.parts if part.event <= event]
        return tree("outside", [(tuple(filter(None, (part.name, part.detail))), part.nbytes) for part in there]).parts

    def driver(self, event: int) -> int | None:
        return None


class MeasuredDevice:
    """The device of a recorded history, whose driver was read.

    ``reserved``: of the allocator after each event, in bytes. ``until_us``: the last microsecond before the next
    event, for each event, by the clock of ``outside``. A phase ends with a reading after its last event, and that
    reading counts for this event.
    """

    provenance = ""

    def __init__(
        self,
        outside: Outside,
        reserved: Sequence[int],
        until_us: Sequence[float],
        index: int = 0,
        elsewhere: Mapping[int, int] | None = None,
    ):
        self.index: int = index
        self.elsewhere: Mapping[int, int] = elsewhere or {}
        self._outside, self._reserved, self._until_us = outside, reserved, until_us

    @property
    def changes(self) -> Sequence[int]:
        times = self._until_us
        around = {find(times, time) for time in self._outside.changes() for find in (bisect_left, bisect_right)}
        return sorted({0, *around} - {len(times)})

    def outside(self, event: int) -> tuple[Share, ...]:
        return self._outside.shares(self._until_us[event])

    def driver(self, event: int) -> int | None:
        return self._reserved[event] + self._outside.total(self._until_us[event])
