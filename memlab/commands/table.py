"""``memlab table PATH...``: run folders as one table."""

import argparse
from pathlib import Path

from memlab.commands.selection import add_selection, selected
from memlab.errors import MemlabError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    form = parser.add_mutually_exclusive_group()
    for name in ("ranks", "phases", "steps"):
        form.add_argument(
            f"--{name}", dest="form", action="store_const", const=name, help=f"a row for each of the {name}"
        )
    for name in ("csv", "parquet", "markdown"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help="write all rows and columns there")


def run(arguments: argparse.Namespace) -> int:
    from memlab.analyse import table
    from memlab.config import GROUPS
    from memlab.report.text import console, show_frame, show_points

    runs = selected(arguments.paths, arguments.where)
    problems: list[str] = []
    if arguments.form is None:
        frame = table.points_table(runs)
    else:
        long_form = {"ranks": table.ranks_table, "phases": table.phases_table, "steps": table.steps_table}
        frame, problems = long_form[arguments.form](runs)
    for problem in problems:
        console().print(problem, soft_wrap=True)
    if not _write(frame, arguments):
        if arguments.form is None:
            show_points(frame, GROUPS, console())
        else:
            show_frame(frame, console())
    return 0


def _write(frame, arguments: argparse.Namespace) -> bool:
    """Write the files that were asked for; whether there were any."""
    from memlab.report.markdown import markdown_table

    writers = {
        "csv": lambda file: frame.to_csv(file, index=False),
        "parquet": lambda file: frame.to_parquet(file, index=False),
        "markdown": lambda file: file.write_text(markdown_table(frame), encoding="utf-8"),
    }
    asked = {name: getattr(arguments, name) for name in writers if getattr(arguments, name)}
    for name, file in asked.items():
        try:
            writers[name](file)
        except ImportError as error:
            raise MemlabError(f"--{name} needs a package that is not installed: {error.name or 'pyarrow'}.") from error
        except OSError as error:
            raise MemlabError(f"Cannot write {file}: {error.strerror or error}.") from error
        print(f"{file}: {len(frame):,} rows, {len(frame.columns)} columns")
    return bool(asked)
