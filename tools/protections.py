"""``python -m tools.protections PATH...``: the measured commands below these folders, predicted with each protection of
the sandbox (memlab/system/sandbox). Every figure of GPU memory must be equal to the byte.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memlab.core.record import Record
from memlab.runs.folder import RunFolder
from memlab.system import sandbox
from tools.accuracy.__main__ import read_records
from tools.accuracy.commands import measured_commands
from tools.program import start

FIGURES = ("allocated", "active", "reserved")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folders that hold measured run folders")


def run(arguments: argparse.Namespace) -> int:
    different, protections = 0, sandbox.PROTECTIONS
    for command in measured_commands(list(read_records(arguments.paths))):
        found = []
        for protection in protections:
            sandbox.PROTECTIONS = (protection,)
            with TemporaryDirectory() as folder:
                found.append(command.predicted_again(RunFolder(Path(folder) / "run")))
        first, *others = map(_figures, found)
        changes = [key for other in others for key in {*first, *other} if first.get(key) != other.get(key)]
        errors = command.judged(found[0]).errors
        told = "; ".join(changes[:5]) or f"{len(first)} figures equal"
        beside = "".join(f"; {name} {100 * error:+.2f} % of the measurement" for name, error in errors.items())
        print(f"{command.sweep}/{command.name}: {found[0].status}, {told}{beside}", flush=True)
        different += bool(changes)
    return int(different > 0)


def _figures(record: Record) -> dict[str, Any]:
    """Return the status, and every figure of GPU memory, by its name."""
    places = {
        f"rank {rank['rank']} {name}": values
        for rank in record.ranks
        for name, values in {"": rank, **rank["phases"]}.items()
    }
    return {"status": record.status} | {
        f"{place} {key}": value
        for place, values in places.items()
        for key, value in values.items()
        if key.endswith("_bytes") and any(name in key for name in FIGURES)
    }


if __name__ == "__main__":
    start(add_arguments, run, __doc__)
