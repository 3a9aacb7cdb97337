"""A run whose memory is drawn: its record, the rank with the highest peak, and this rank's memory over time."""

from dataclasses import dataclass
from functools import cached_property

from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.placements import Timeline, timeline
from memlab.analyse.run_view import RunView
from memlab.core.record import Record
from memlab.report.figures.sheet import Sheet, sheets


@dataclass(frozen=True)
class DrawnRun:
    """``sheet``: the run alone, for titles."""

    view: RunView
    record: Record
    rank: Explained

    @property
    def sheet(self) -> Sheet:
        return next(sheets([self.view]))

    @cached_property
    def timeline(self) -> Timeline:
        return timeline(self.rank)

    @property
    def note(self) -> str:
        """Say what a figure of this run shows: measured or predicted, and the rank."""
        ranks = len(self.record.ranks)
        return f"{self.view.source}, rank {self.rank.rank}{f' of {ranks}, which holds the most' if ranks > 1 else ''}"
