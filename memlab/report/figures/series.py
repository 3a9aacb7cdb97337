"""Runs of one configuration along one axis: what a line of a figure shows."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from memlab.analyse.identity import MICRO, TOKENS, point_of
from memlab.analyse.run import Run
from memlab.report.figures.sheet import NothingToDraw, Sheet

NAMES = {TOKENS: "sequence length, tokens", MICRO: "micro batch, samples per GPU"}
"""Axis -> how it is written."""


@dataclass(frozen=True)
class Series:
    """``label`` is the configuration's, ``name`` what the legend says. Positions are those of the axis."""

    label: str
    name: str
    points: dict[int, list[Run]]  # position -> the repeats that ended as ok
    ooms: tuple[int, ...]  # positions that ran out of GPU memory
    turn: int  # the how many-eth series of its configuration

    def ranks(self, key: str) -> tuple[list[int], list[float], list[float], list[float]]:
        """Positions with lowest, mean and highest rank of a figure, over all repeats."""
        rows = []
        for position, repeats in sorted(self.points.items()):
            found = [run.summary[key] for run in repeats if isinstance(run.summary.get(key), dict)]
            if found:
                low, high = min(each["min"] for each in found), max(each["max"] for each in found)
                rows.append((position, low, mean(each["mean"] for each in found), high))
        return tuple(map(list, zip(*rows, strict=True))) if rows else ([], [], [], [])

    def rate(self, key: str) -> tuple[list[int], list[float], list[float], list[float]]:
        """Positions with lowest, mean and highest of a figure of the summary, over repeats."""
        rows = []
        for position, repeats in sorted(self.points.items()):
            found = [run.summary[key] for run in repeats if run.summary.get(key) is not None]
            if found:
                rows.append((position, min(found), mean(found), max(found)))
        return tuple(map(list, zip(*rows, strict=True))) if rows else ([], [], [], [])


def series_over(sheet: Sheet, axis: str) -> list[Series]:
    """The series over sequence length or micro batch, the other one being fixed.

    Raises :class:`NothingToDraw` where no configuration has two positions.
    """
    found = list(_all_series(sheet, axis))
    long = [series for series in found if len({*series.points, *series.ooms}) > 1 and series.points]
    if not long:
        raise NothingToDraw(f"no configuration has two points along {axis}")
    return long


def _all_series(sheet: Sheet, axis: str) -> Iterator[Series]:
    here, other = (1, 0) if axis == TOKENS else (0, 1)
    others = {point_of(run)[other] for run in sheet.runs}
    for label, members in sheet.configurations.items():
        groups: dict[int, list[Run]] = {}
        for run in members:
            groups.setdefault(point_of(run)[other], []).append(run)
        turn = 0
        for fixed, runs in sorted(groups.items()):
            points: dict[int, list[Run]] = {}
            for run in runs:
                if run.status == "ok":
                    points.setdefault(point_of(run)[here], []).append(run)
            ooms = tuple(sorted({point_of(run)[here] for run in runs if run.status == "gpu_oom"}))
            told = f"batch {fixed:,}" if axis == TOKENS else f"{fixed:,} tokens"
            words = [sheet.short(label), told if len(others) > 1 or not sheet.short(label) else ""]
            yield Series(label, ", ".join(word for word in words if word), points, ooms, turn)
            turn += len({*points, *ooms}) > 1
