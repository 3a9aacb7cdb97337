"""``python -m tools.outside_sizes READINGS.csv``: fit the sizes of what lies outside torch's allocator, which ship."""

import argparse
from dataclasses import asdict
from pathlib import Path

from memlab.files.disk import write_output
from memlab.files.json_file import write_json
from memlab.prediction.fit_outside import fit, read_ranks
from memlab.simulator.outside.parts import SHIPPED
from tools.program import start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("readings", type=Path, metavar="READINGS.csv")
    parser.add_argument("--gpu", required=True, help="the GPU that was measured, by its name in NVML")
    parser.add_argument("--versions", required=True, help="of the driver and of torch, as text")
    parser.add_argument("--output", type=Path, default=SHIPPED, metavar="FILE", help="default: the file that ships")


def run(arguments: argparse.Namespace) -> None:
    found = fit(read_ranks(arguments.readings), arguments.gpu, arguments.versions, str(arguments.readings.parent))
    write_json(arguments.output, asdict(found), write_output)


if __name__ == "__main__":
    start(add_arguments, run, __doc__)
