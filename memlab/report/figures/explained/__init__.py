"""Figures of the memory of single runs, from their histories: over a step, by phase, by rank, and of two runs."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from memlab.analyse.explain.explained_run import explain
from memlab.analyse.run_view import RunView
from memlab.core.errors import RecordError
from memlab.report.figures import canvas
from memlab.report.figures.explained.by_phase import by_phase
from memlab.report.figures.explained.drawn_run import DrawnRun
from memlab.report.figures.explained.over_ranks import over_ranks
from memlab.report.figures.explained.over_step import over_step
from memlab.report.figures.explained.overlaid import overlaid
from memlab.report.figures.sheet import NothingToDraw
from memlab.runs.folder import RunFolder

KIND = "explain"
"""Kind of these figures, for --kind. It is drawn only where it is asked for: the history of each run is replayed."""

OF_ONE_RUN: dict[str, Callable[[DrawnRun], Figure]] = {"step": over_step, "phases": by_phase, "ranks": over_ranks}

MOST = 8
"""Most runs whose histories are drawn at once."""


def draw_explained(views: Sequence[RunView], output: Path) -> Iterator[tuple[str, list[Path] | str]]:
    """Write the figures of each run, and of two runs one in which they lie over each other.

    Yields the kind with the files written, or with the reason for none.
    """
    runs: list[DrawnRun] = []
    for view in views[:MOST]:
        try:
            explained = explain(RunFolder(view.path))
            explained.need_history()
        except RecordError as error:
            yield KIND, str(error)
            continue
        yield from ((KIND, problem) for problem in explained.problems)
        runs.append(DrawnRun(view, explained.record, explained.shown))
    for number, run in enumerate(runs, start=1):
        of_run = "" if len(runs) == 1 else f"{number}-{Path(run.view.path).name}"
        for part, make in OF_ONE_RUN.items():
            if part != "ranks" or len(run.record.ranks) > 1:
                yield KIND, _written(partial(make, run), output, part, of_run)
    if len(runs) == 2:
        measured_first = sorted(runs, key=lambda run: run.view.source)
        yield KIND, _written(partial(overlaid, *measured_first), output, "overlaid", "")
    if len(views) > MOST:
        yield KIND, f"{len(views) - MOST} of {len(views)} runs are left out: name at most {MOST} run folders"


def _written(make: Callable[[], Figure], output: Path, *names: str) -> list[Path] | str:
    try:
        with canvas.style():
            return canvas.save(make(), output, "-".join(filter(None, (KIND, *names))))
    except NothingToDraw as reason:
        return str(reason)
