"""The options of sub-commands that write a table to files."""

import argparse
from pathlib import Path
from typing import Any

from memlab.disk import replacing
from memlab.errors import MemlabError

FORMATS = ("csv", "parquet", "markdown")


def add_files(parser: argparse.ArgumentParser) -> None:
    for name in FORMATS:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help="write all rows and columns there")


def write_files(frame: Any, arguments: argparse.Namespace) -> bool:
    """Write the files that were asked for, each whole or not at all; whether there were any.

    Raises :class:`MemlabError` where one cannot be written.
    """
    from memlab.report.markdown import markdown_table

    writers = {
        "csv": lambda file: frame.to_csv(file, index=False),
        "parquet": lambda file: frame.to_parquet(file, index=False),
        "markdown": lambda file: file.write_text(markdown_table(frame), encoding="utf-8"),
    }
    asked = {name: getattr(arguments, name) for name in FORMATS if getattr(arguments, name)}
    for name, file in asked.items():
        try:
            with replacing(file, suffix=f".tmp{file.suffix}") as temporary:  # pandas compresses for .csv.gz
                writers[name](temporary)
        except ImportError as error:
            raise MemlabError(f"--{name} needs a package that is not installed: {error.name or 'pyarrow'}.") from error
        print(f"{file}: {len(frame):,} rows, {len(frame.columns)} columns")
    return bool(asked)
