"""Table and page at the end of a sweep: printed, and written into its folder."""

from pathlib import Path

from rich.console import Console

from memlab.core.errors import reason_of
from memlab.runs.folder import SweepFolder


def leave_table_and_page(root: Path, console: Console) -> None:
    """Print the table of all runs in the folder of a sweep, write it and the page, and print their paths.

    The sweep is over and its records are on the disk, so an error prints one line and raises nothing.
    """
    folder = SweepFolder(root)
    try:
        lines = [f"{kind}: {root / name}" for kind, name in _write(folder, console).items()]
    except KeyboardInterrupt:
        lines = [f"No table and no page: interrupted. memlab report {root} makes the page."]
    except Exception as error:
        lines = [f"No table and no page: {reason_of(error).splitlines()[0]}"]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _write(folder: SweepFolder, console: Console) -> dict[str, str]:
    """Print and write the table of the runs, and write the page of those with a known batch and length.

    Returns kind -> file name.
    """
    from memlab.analyse.collect import collect  # here: a sweep must not wait half a second for pandas
    from memlab.analyse.identity import points_of
    from memlab.analyse.table import points_table
    from memlab.report.page import write_page
    from memlab.report.points_text import show_points
    from memlab.report.table_files import write_table

    found, written = collect([folder.path]), {}
    if found.runs:
        show_points(found.runs, console)
        folder.claim_around_runs()
        write_table(points_table(found.runs), folder.path / folder.TABLE)
        written["table"] = folder.TABLE
    if points := points_of(found.runs).runs:
        write_page(points, found.skipped, folder.path.name, folder.path / folder.PAGE)
        written["page"] = folder.PAGE
    return written
