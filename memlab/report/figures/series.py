"""Series of a figure: runs of one configuration along one axis."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from memlab.analyse.identity import MICRO, TOKENS, point_of
from memlab.analyse.run_view import RunView
from memlab.report.figures.sheet import NothingToDraw, Sheet

NAMES = {TOKENS: "sequence length, tokens", MICRO: "micro batch, samples per GPU"}
"""Axis -> its label in figures."""


Columns = tuple[list[int], list[float], list[float], list[float]]
"""Positions, and the lowest, mean and highest value at each."""


@dataclass(frozen=True)
class Series:
    """One line of a figure. ``label``: its configuration; ``name``: its legend. Positions are values of the axis."""

    label: str
    name: str
    points: dict[int, list[RunView]]  # position -> the repeats that ended as ok
    ooms: tuple[int, ...]  # positions that ran out of GPU memory
    turn: int  # index of the series within its configuration

    def ranks(self, key: str) -> Columns:
        """Return positions, and lowest, mean and highest rank of a figure at each position, over all repeats."""
        rows = []
        for position, repeats in sorted(self.points.items()):
            found = [run.summary[key] for run in repeats if isinstance(run.summary.get(key), dict)]
            if found:
                low, high = min(each["min"] for each in found), max(each["max"] for each in found)
                rows.append((position, low, mean(each["mean"] for each in found), high))
        return _columns(rows)

    def rate(self, key: str) -> Columns:
        """Return positions, and lowest, mean and highest value of a rate at each position, over repeats.

        Rates that are only bounds are left out.
        """
        rows = []
        for position, repeats in sorted(self.points.items()):
            found = [value for run in repeats if (value := run.comparable(key)) is not None]
            if found:
                rows.append((position, min(found), mean(found), max(found)))
        return _columns(rows)


def _columns(rows: Sequence[tuple[int, float, float, float]]) -> Columns:
    positions, low, middle, high = zip(*rows, strict=True) if rows else ((), (), (), ())
    return list(positions), list(low), list(middle), list(high)


def series_over(sheet: Sheet, axis: str) -> list[Series]:
    """Make the series over sequence length or micro batch; each series has one value of the other axis.

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
        groups: dict[int, list[RunView]] = {}
        for run in members:
            groups.setdefault(point_of(run)[other], []).append(run)
        turn = 0
        for fixed, runs in sorted(groups.items()):
            points: dict[int, list[RunView]] = {}
            for run in runs:
                if run.fits_and_lasts:
                    points.setdefault(point_of(run)[here], []).append(run)
            ooms = tuple(sorted({point_of(run)[here] for run in runs if run.status == "gpu_oom"}))
            point = f"batch {fixed:,}" if axis == TOKENS else f"{fixed:,} tokens"
            words = [sheet.short(label), point if len(others) > 1 or not sheet.short(label) else ""]
            yield Series(label, ", ".join(word for word in words if word), points, ooms, turn)
            turn += len({*points, *ooms}) > 1
