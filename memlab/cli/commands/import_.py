"""``memlab import gpjt FILE...`` and ``memlab import csv FILE...``: turn other people's tables into run folders."""

import argparse
from pathlib import Path

from memlab.cli.commands.shared_arguments import whole
from memlab.core.errors import MemlabError
from memlab.system.terminal import safe

GPJT_GROUPS = ("model", "zero_stage", "offload", "checkpointing", "allocator", "hardware")
"""Groups that the study varied. Each is an option of ``memlab import gpjt``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_subparsers(dest="format", required=True, metavar="FORMAT")
    gpjt = formats.add_parser("gpjt", help="import the CSV files of the study gpjt/fine-tune-2024-04: one line a rank")
    for group in GPJT_GROUPS:
        help = f"option of the group {group} (default: guessed from the file name)"
        gpjt.add_argument(f"--{group.replace('_', '-')}", metavar="OPTION", help=help)
    help = "meaning of the first column (default: guessed from the file name)"
    gpjt.add_argument("--axis", choices=("seq_len", "batch"), help=help)
    help = "value of the axis that the file does not vary (default: 2048 tokens, or batch 1)"
    gpjt.add_argument("--other", type=whole(1), metavar="VALUE", help=help)
    help = "multiply iterations/s by 28/29, since the study divides 29 steps by the time of 28"
    gpjt.add_argument("--correct-rate", action="store_true", help=help)
    table = formats.add_parser("csv", help="import any table with a header line: one line a point, or one line a rank")
    help = "the column of each record key, for example seq_len.tokens=length peak_reserved_bytes=memory:GiB"
    table.add_argument("--map", nargs="+", required=True, metavar="KEY=COLUMN[:UNIT]", help=help)
    help = "values that all lines share: zero_stage=zero3"
    table.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help=help)
    for each in (gpjt, table):
        each.add_argument("files", nargs="+", type=Path, metavar="FILE")
        each.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the run folders")


def run(arguments: argparse.Namespace) -> int:
    from memlab.importers.csv_table import write_records

    records_of = _gpjt if arguments.format == "gpjt" else _csv
    for file in arguments.files:
        written = write_records(records_of(file, arguments), arguments.output)
        print(f"{safe(file.name)}: {len(written)} points -> {arguments.output}")
    return 0


def _gpjt(file: Path, arguments: argparse.Namespace):
    from memlab.importers.gpjt_study import guess_configuration, read_points, to_records

    given = {group: getattr(arguments, group) for group in GPJT_GROUPS}
    study_file = guess_configuration(file, axis=arguments.axis, other=arguments.other, **given)
    words = " ".join(f"{group}={study_file.choices[group]}" for group in GPJT_GROUPS)
    print(f"{safe(file.name)}: {words}; the axis is {study_file.axis}, the other axis is {study_file.other}")
    if study_file.guessed:
        options = " ".join(f"--{group.replace('_', '-')}" for group in study_file.guessed)
        print(f"{safe(file.name)}: {' and '.join(study_file.guessed)} guessed, since the name lacks it: set {options}")
    if repeated := sum(point.repeated for point in read_points(file)[0]):
        print(f"{safe(file.name)}: {repeated} lines repeat an earlier line of the same GPU; the last one counts")
    return to_records(file, study_file, arguments.correct_rate)


def _csv(file: Path, arguments: argparse.Namespace):
    from memlab.core.config import GROUPS
    from memlab.importers.csv_table import csv_records, parse_map, typed

    fixed = {}
    for word in arguments.set:
        key, equals, value = word.partition("=")
        if not equals:
            raise MemlabError(f"--set {word}: write KEY=VALUE.")
        fixed[key] = value if key in GROUPS else typed(value)
    return csv_records(file, parse_map(arguments.map), fixed)
