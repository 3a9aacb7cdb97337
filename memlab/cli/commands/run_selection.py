"""Selection of runs, shared by the commands: their folders, ``--where``, and messages about unusable folders."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from memlab.core.errors import MemlabError, nearest
from memlab.runs.folder import RunFolder
from memlab.runs.marker import MARKER
from memlab.system.terminal import safe

LISTS_RUNS = "memlab table FOLDER lists the runs below a folder."

OUTPUTS = Path("outputs")
"""Default place of run folders, below the current folder (conf/hydra/memlab.yaml)."""


def add_selection(parser: argparse.ArgumentParser, without: str = "") -> None:
    """Add the arguments ``PATH`` and ``--where``.

    ``without``: description for the help of what is used if no path is given; empty: a path is required.
    """
    help = "run folders, or folders that hold them" + f" (default: {without})" * bool(without)
    parser.add_argument("paths", nargs="*" if without else "+", metavar="PATH", help=help)
    add_where(parser)


def add_all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="print all that is known of the run below the answer")


def add_where(parser: argparse.ArgumentParser) -> None:
    help = "use only runs with zero_stage=zero3, for example"
    parser.add_argument("--where", nargs="+", default=[], metavar="KEY=VALUE", help=help)


def run_folder(path: str | Path) -> RunFolder:
    """Return a run folder. Raises :class:`MemlabError` for another path, and names run folders that may be meant."""
    place = Path(path)
    if place.is_file():
        raise MemlabError(f"{safe(str(place))}: a file. Name the folder that it is in: {safe(str(place.parent))}")
    if not place.is_dir():
        folders = [folder.name for folder in place.parent.glob("*") if folder.is_dir()]
        hint = nearest(place.name, folders) if folders else LISTS_RUNS
        raise MemlabError(f"{safe(str(place))}: no such folder. {safe(hint)}")
    folder = RunFolder(place)
    if not (folder.path / RunFolder.RECORD).exists():
        inside = sorted(record.parent.name for record in place.glob(f"*/{RunFolder.RECORD}"))
        without = "Is its run still going?" if (place / MARKER).exists() else LISTS_RUNS
        hint = f"Name one of those in it: {', '.join(inside)}" if inside else without
        raise MemlabError(f"{safe(str(place))}: no run folder, because it has no {RunFolder.RECORD}. {safe(hint)}")
    return folder


def latest_run() -> Path:
    """Find the run folder below ``OUTPUTS`` with the newest record, and name it on standard error."""
    return _latest("run", (record.parent for record in _records()))


def latest_sweep() -> Path:
    """Find the folder below ``OUTPUTS`` that has several runs and the newest record of all such folders.

    Names the folder on standard error.
    """
    runs = Counter(record.parent.parent for record in _records())  # in the order of the records
    return _latest("sweep", (folder for folder, count in runs.items() if count > 1))


def _latest(what: str, folders: Iterable[Path]) -> Path:
    """Return the first of ``folders`` (newest first). Raises :class:`MemlabError` if there is none."""
    if (found := next(iter(folders), None)) is None:
        raise MemlabError(f"No {what} below {OUTPUTS}/ in the current folder. Name a folder: memlab COMMAND FOLDER.")
    print(f"the latest {what}: {safe(found)}", file=sys.stderr)
    return found


def _records() -> list[Path]:
    """List the records below ``OUTPUTS``, newest first."""
    return sorted(OUTPUTS.rglob(RunFolder.RECORD), key=lambda record: record.lstat().st_mtime_ns, reverse=True)


def selected(paths, conditions, of_points=False):
    """Return the runs. Prints a line on standard error for each skipped folder and each incomplete run.

    ``of_points``: leave out runs whose batch or length is not known, and print a line for each. Runs whose batches hold
    no tokens are counted in samples, and a line names them.
    """
    return collected(paths, conditions, of_points)[0]


def collected(paths, conditions, of_points=False):
    """Return the runs as :func:`selected`, and the places that were skipped."""
    from memlab.analyse.collect import collect
    from memlab.analyse.identity import points_of, select
    from memlab.report.text import console, show_incomplete, show_skipped

    collection = collect(paths)
    runs = select(collection.runs, conditions)
    errors = console(sys.stderr)
    show_skipped(collection.skipped, errors)
    show_incomplete(runs, errors)
    places = ", ".join(map(str, paths))
    if not runs:
        raise MemlabError(
            f"{places}: no readable run{' that meets --where' * bool(conditions)}. Name run folders, or folders that "
            "hold them."
        )
    if of_points:
        points = points_of(runs)
        for run in points.without:
            errors.print(f"{run.run_id}: left out, since its batch or length is not known", soft_wrap=True)
        if points.in_samples:
            names = ", ".join(run.run_id for run in points.in_samples)
            text = f"{names}: no tokens in the batches, so that samples are counted: read each token below as a sample"
            errors.print(text, soft_wrap=True)
        if not (runs := points.runs):
            raise MemlabError(
                f"{places}: of no run are batch and length known, which this command needs. memlab table and memlab "
                "show read all runs."
            )
    return runs, collection.skipped
