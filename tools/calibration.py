"""``python -m tools.calibration RUNS... [--output FILE]``: fit the step time's costs to measured runs."""

import argparse
from dataclasses import asdict
from pathlib import Path

from memlab.prediction.time.calibrate import SHIPPED, Calibration, calibrate, usable
from tools.program import start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="folders that hold run folders")
    parser.add_argument("--output", type=Path, default=SHIPPED, metavar="FILE", help="default: the file that ships")


def run(arguments: argparse.Namespace) -> int:
    found = calibrate(usable(arguments.runs))
    found.save(arguments.output)
    print(described(found))
    return 0


def described(found: Calibration) -> str:
    """Return the costs and the errors of a calibration as text, a line each."""
    lines = [f"{found.gpu}: {len(found.records)} records of {len(found.errors_by_family)} configurations"]
    costs = asdict(found.costs)
    width = max(map(len, costs))
    for name, value in costs.items():
        note = "(not determined: at its bound)" if name in found.undetermined else ""
        note = "(not determined: as it ships)" if name in found.from_shipped else note
        note = "(one configuration alone determines it)" if name in found.determined_once else note
        lines.append(f"  {name:{width}} {value:<10.4g} {note}".rstrip())
    lines.append(
        f"  error, of configurations that the fit had not seen: median {found.error['median']:.1%}, "
        f"90th percentile {found.error['p90']:.1%}"
    )
    for name, error in found.errors_by_family.items():
        lines.append(f"  {'not judged' if error is None else f'{error:+10.1%}'}  {name}")
    lines += [f"  left out: {name}" for name in found.left_out]
    return "\n".join(lines)


if __name__ == "__main__":
    start(add_arguments, run, __doc__)
