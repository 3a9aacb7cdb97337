"""Memory that grows from step to step: whether it goes on over steps of equal shape, and what keeps it."""

from collections.abc import Callable, Sequence
from typing import Any

from .batches import BatchSize
from .keepers import Keepers
from .own_errors import contained
from .steps import Step

LEAST_GROWTH = 1 << 16
"""Bytes a step below which growth is not named: it would take a million steps to fill a GPU."""

COMPARED = 30
"""Most steps of equal shape that are compared: the last ones."""

LEAST_COMPARED = 4
"""Fewest steps of equal shape that show growth. The variable that keeps tensors is known from the third one on."""


class GrowthWatch:
    """Follows the requested bytes that are alive when a step ends. The allocated bytes would not do: the allocator does
    not split the rest off a block if it is small, so that they jump by up to a MiB.

    ``find_end``: returns the last step of the whole run, as far as the script says it while it trains.
    ``steps_of_script``: returns it after the script's end, if the script gave the steps of this run a part of its
    batches (a shortened prediction); ``None``: the steps that ran are all.
    """

    def __init__(self, find_end: Callable[[], int | None]):
        self.steps_of_script: Callable[[], int | None] | None = None
        self._find_end = find_end
        self._keepers = Keepers()
        self._ends: list[tuple[int, int]] = []  # of steps of one shape: number, bytes at the end
        self._shapes: dict[tuple, list[tuple[int, int]]] = {}
        self._first_look: int | None = None
        self._next_look = 0
        self._end_step: int | None = None

    def step_ends(self, step: Step) -> bool:
        """Note a step. Returns whether it took time to look for what keeps memory: 1, 2, 4, ... steps after the first
        look. The first step makes states and buffers that stay: it is left out.
        """
        requested = step.figures.total.end_requested_bytes
        if requested is None or step.number == 1:
            return False
        size = step.size or BatchSize()
        shape = (step.micro_batches, size.samples, size.tokens, size.padded_length, size.largest_micro_batch)
        self._ends = self._shapes.setdefault(shape, [])
        self._ends.append((step.number, requested))
        if step.number < self._next_look or not self.bytes_per_step:
            return False
        self.look()
        return True

    @contained
    def look(self) -> None:
        """Look for what keeps memory that grows, and for the end of the run, at the end of a step."""
        now = self._ends[-1][0]
        self._first_look = self._first_look or now
        self._next_look = now + max(now - self._first_look, 1)  # also after a look that fails
        self._end_step = self._find_end()
        self._keepers.look(now, self.bytes_per_step)

    @property
    def bytes_per_step(self) -> int:
        """How much memory grows in a step, over the last steps of the shape of the last one; 0: it does not."""
        return growth_of(self._ends[-COMPARED:])

    def facts(self, ended: str) -> dict[str, Any] | None:
        """Return ``growth`` of the rank's file. ``ended``: of the same file. ``None``: memory does not grow."""
        compared = self._ends[-COMPARED:]
        if len(compared) < LEAST_COMPARED or not (each := growth_of(compared)):
            return None
        end_step, last = self._end_step, compared[-1][0]
        if ended == "finished" and self.steps_of_script is None:
            end_step = last
        elif ended == "finished" and end_step is None and self.steps_of_script:
            end_step = self.steps_of_script()
        return {
            "bytes_per_step": each,
            "steps_seen": last - compared[0][0],
            "last_step": last,
            "end_step": end_step,
            "kept_by": self._keepers.found,
        }


def growth_of(ends: Sequence[tuple[int, int]]) -> int:
    """Return by how many bytes a step memory grows, from the numbers of steps of equal shape and the bytes at their
    ends; 0 if it does not go on: a later step holds less than an earlier one, or the later half no longer grows."""
    half = len(ends) // 2
    if not half:
        return 0
    highest, lowest = max(held for _, held in ends[:half]), min(held for _, held in ends[half:])
    each = (ends[-1][1] - ends[0][1]) // (ends[-1][0] - ends[0][0])
    each_later = (ends[-1][1] - highest) // (ends[-1][0] - ends[half - 1][0])
    return each if lowest >= highest and min(each, each_later) >= LEAST_GROWTH else 0
