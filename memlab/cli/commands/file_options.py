"""Options of the sub-commands that write a table to files."""

import argparse
from typing import Any

from memlab.cli.commands.path_types import output_file
from memlab.core.errors import MemlabError

FORMATS = ("csv", "parquet", "markdown")


def add_files(parser: argparse.ArgumentParser) -> None:
    for name in FORMATS:
        parser.add_argument(
            f"--{name}", type=output_file, metavar="FILE", help="write all rows and columns to this file"
        )


def write_files(frame: Any, arguments: argparse.Namespace) -> bool:
    """Write the requested files, each whole or not at all. Returns whether any file was requested.

    Raises :class:`MemlabError` if a file cannot be written.
    """
    from memlab.report.table_files import write_table

    requested = {name: getattr(arguments, name) for name in FORMATS if getattr(arguments, name)}
    for name, file in requested.items():
        try:
            write_table(frame, file, name)
        except ImportError as error:
            package = error.name or "pyarrow"
            raise MemlabError(f"--{name} needs a package that is not installed: pip install {package}.") from error
        print(f"{file}: {len(frame):,} rows, {len(frame.columns)} columns")
    return bool(requested)
