"""Limit on the growth of peak reserved memory, from the first to the second run of each pair."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from memlab.analyse.effects import Pair
from memlab.analyse.run_view import LACKS_MEMORY
from memlab.core.errors import MemlabError


@dataclass(frozen=True)
class GrowthLimit:
    """Most that peak reserved memory may grow: ``amount`` is a share of the base, or bytes. ``text``: as the user wrote
    it."""

    text: str
    amount: float
    is_share: bool

    def over(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs that grow by more, the worst first. A run out of memory needs more than any that ran.

        Raises :class:`MemlabError` if no pair has a growth: no answer may look like a good one.
        """
        grown = [(growth, pair) for pair in pairs if (growth := self._growth(pair)) is not None]
        if not grown:
            raise MemlabError("--fail-over: the peak reserved memory of no two runs can be compared.")
        return [pair for growth, pair in sorted(grown, key=lambda each: -each[0]) if growth > self.amount]

    def _growth(self, pair: Pair) -> float | None:
        if set(pair.endings) != {"ok"}:
            base, other = (ending in LACKS_MEMORY for ending in pair.endings)
            return (inf if other else -inf) if "ok" in pair.endings and base != other else None
        difference = pair.differences.get("peak_reserved_bytes")
        if difference is None:
            return None
        unit = difference.base.value if self.is_share else 1.0
        return difference.absolute / unit if unit else inf if difference.absolute else 0.0
