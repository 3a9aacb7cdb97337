"""``memlab import gpjt FILE...`` and ``memlab import csv FILE...``: turn other people's tables into run folders."""

import argparse
from pathlib import Path

from memlab.cli.commands.number_types import whole
from memlab.core.errors import MemlabError
from memlab.system.terminal import safe

GPJT_GROUPS = ("model", "zero_stage", "offload", "checkpointing", "allocator", "hardware")
"""Groups that the study varied. Each is an option of ``memlab import gpjt``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_subparsers(dest="format", required=True, metavar="FORMAT")
    gpjt = formats.add_parser("gpjt", help="the CSV files of the study gpjt/fine-tune-2024-04: a line for each rank")
    gpjt.add_argument("files", nargs="+", type=Path, metavar="FILE")
    for group in GPJT_GROUPS:
        gpjt.add_argument(f"--{group.replace('_', '-')}", metavar="OPTION", help="default: what the file's name tells")
    gpjt.add_argument("--axis", choices=("seq_len", "batch"), help="what the first column is (default: by the name)")
    gpjt.add_argument("--other", type=whole(1), help="the value of the other axis (default: 2048 tokens, or batch 1)")
    gpjt.add_argument(
        "--correct-rate", action="store_true", help="multiply iterations/s by 28/29: the study divides 29 by 28 steps"
    )
    table = formats.add_parser("csv", help="any table with a header line: a line for each point, or for each rank")
    table.add_argument("files", nargs="+", type=Path, metavar="FILE")
    table.add_argument(
        "--map",
        nargs="+",
        required=True,
        metavar="KEY=COLUMN[:UNIT]",
        help="where a record key is found, for instance seq_len.tokens=length peak_reserved_bytes=memory:GiB",
    )
    table.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="what all lines share: zero_stage=zero3"
    )
    for each in (gpjt, table):
        each.add_argument("--output", type=Path, required=True, metavar="DIR", help="where the run folders go")


def run(arguments: argparse.Namespace) -> int:
    from memlab.importers.records import write_records

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
    print(f"{safe(file.name)}: {words}, over {study_file.axis}, the other axis at {study_file.other}")
    if study_file.guessed:
        print(f"{safe(file.name)}: the name does not tell {' and '.join(study_file.guessed)}; give it if that is wrong")
    repeated = sum(point.repeated for point in read_points(file)[0])
    if repeated:
        print(f"{safe(file.name)}: {repeated} lines repeat an earlier line of their GPU; the last stands")
    return to_records(file, study_file, arguments.correct_rate)


def _csv(file: Path, arguments: argparse.Namespace):
    from memlab.core.config import GROUPS
    from memlab.importers.csv_table import csv_records, parse_map, typed

    fixed = {}
    for word in arguments.set:
        key, equals, value = word.partition("=")
        if not equals:
            raise MemlabError(f"--set {word}: expected KEY=VALUE")
        fixed[key] = value if key in GROUPS else typed(value)
    return csv_records(file, parse_map(arguments.map), fixed)
