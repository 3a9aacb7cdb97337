"""Table and page that a sweep writes into its folder, so that the user need not know the commands for them."""

from pathlib import Path

from rich.console import Console

from memlab.core.errors import reason_of
from memlab.runs.folder import SweepFolder


def leave_table_and_page(root: Path, console: Console) -> None:
    """Write the table and the page of all runs in the folder of a sweep, and print their paths.

    The sweep is over and its records are on the disk, so an error prints one line and raises nothing.
    """
    folder = SweepFolder(root)
    try:
        count = _write(folder)
        lines = [f"table: {root / folder.TABLE}", f"page: {root / folder.PAGE}"] if count else []
    except KeyboardInterrupt:
        lines = [f"No table and no page: interrupted. memlab report {root} makes the page."]
    except Exception as error:
        lines = [f"No table and no page: {reason_of(error).splitlines()[0]}"]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _write(folder: SweepFolder) -> int:
    """Write the table and the page unless there are no runs. Returns the number of runs."""
    from memlab.analyse.collect import collect  # here: a sweep must not wait half a second for pandas
    from memlab.analyse.identity import has_point
    from memlab.analyse.table import points_table
    from memlab.report.page import write_page
    from memlab.report.table_files import write_table

    found = collect([folder.path])
    if found.runs:
        folder.claim_around_runs()
        write_table(points_table(found.runs), folder.path / folder.TABLE)
        write_page(list(filter(has_point, found.runs)), found.skipped, folder.path.name, folder.path / folder.PAGE)
    return len(found.runs)
