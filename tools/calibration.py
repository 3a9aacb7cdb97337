"""``python -m tools.calibration RUNS... [--output FILE]``: fit the step time's costs to measured runs."""

import argparse
from dataclasses import asdict
from pathlib import Path

from memlab.prediction.time.calibrate import SHIPPED, Calibration, calibrate, usable
from tools.program import start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="folders that hold run folders")
    parser.add_argument("--output", type=Path, default=SHIPPED, metavar="FILE", help="default: the file that ships")


def run(arguments: argparse.Namespace) -> None:
    found = calibrate(usable(arguments.runs))
    found.save(arguments.output)
    print(described(found))


def described(found: Calibration) -> str:
    """Return the costs and the errors of a calibration as text, a line each."""
    costs, errors = asdict(found.costs), found.errors_by_family
    width = max(map(len, costs))
    notes = {
        **dict.fromkeys(found.undetermined, "(not determined: at its bound)"),
        **dict.fromkeys(found.from_shipped, "(not determined: as it ships)"),
        **dict.fromkeys(found.determined_once, "(one configuration alone determines it)"),
    }
    lines = [
        f"{found.gpu}: {len(found.records)} records of {len(errors)} configurations",
        *(f"  {name:{width}} {value:<10.4g} {notes.get(name, '')}".rstrip() for name, value in costs.items()),
        f"  error, of configurations that the fit had not seen: median {found.error['median']:.1%}, "
        f"90th percentile {found.error['p90']:.1%}",
        *(f"  {'not judged' if error is None else f'{error:+10.1%}'}  {name}" for name, error in errors.items()),
        *(f"  left out: {name}" for name in found.left_out),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    start(add_arguments, run, __doc__)
