"""Types of command line arguments (numbers with a range, paths), and options of several commands: files, folders."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memlab.core.errors import MemlabError
from memlab.core.schema import LARGEST_WHOLE, Range
from memlab.runs.folder import RunFolder

HARDWARE = ("hardware=", "hardware.")
"""What words of the machine begin with."""


def output_file(text: str) -> Path:
    """Return the path of a file to write. Refuses a folder, and a file that a run left in its folder."""
    if (path := Path(text)).is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: name a file in it")
    target = path.resolve()
    if RunFolder(target.parent).owns(target.name):
        raise argparse.ArgumentTypeError(f"{path} belongs to a run, which would lose it: choose another name")
    return path


def whole(minimum: int) -> Callable[[str], int]:
    """Make the type of a whole number."""
    return _within(int, "a whole number", Range(minimum, LARGEST_WHOLE))


def number(allowed: Range) -> Callable[[str], float]:
    """Make the type of a finite number."""
    return _within(float, "a number", allowed)


def _within(kind: type, noun: str, allowed: Range):
    def read(text: str):
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {noun}, not '{text}'") from None
        if refusal := allowed.refusal(value):
            raise argparse.ArgumentTypeError(f"must be {refusal}, not {text}")
        return value

    return read


def add_output(parser: argparse.ArgumentParser) -> None:
    help = "the run folder (default: a new one below outputs/)"
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=help)


def add_gpu_memory(parser: argparse.ArgumentParser) -> None:
    help = "memory of one GPU (default: the memory in the runs)"
    parser.add_argument("--gpu-memory", type=number(Range(0.0, above=True)), metavar="GIB", help=help)


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    help = "a folder with your own options of config groups: DIR/hardware/mine.yaml is hardware=mine"
    parser.add_argument("--config-dir", type=_folder, metavar="DIR", help=help)


def _folder(text: str) -> str:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return text


FORMATS = ("csv", "parquet", "markdown")


def add_files(parser: argparse.ArgumentParser) -> None:
    help = "write all rows and columns to this file"
    for name in FORMATS:
        parser.add_argument(f"--{name}", type=output_file, metavar="FILE", help=help)


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
