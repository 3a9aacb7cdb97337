"""``python -m tools.accuracy PATH... --output DIR``: predict measured runs again, and report the errors."""

import argparse
import json
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from memlab.cli.commands.shared_arguments import whole
from memlab.core.errors import MemlabError, RecordError
from memlab.core.plan import shape_of
from memlab.files.disk import write_output
from memlab.runs.folder import RunFolder
from memlab.system.terminal import safe
from tools.accuracy.errors import judge, kinds, reserved_ratios, to_json
from tools.program import start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folders that hold measured run folders")
    help = "folder for accuracy.md and accuracy.json (default: print the page)"
    parser.add_argument("--output", "-o", type=Path, metavar="DIR", help=help)
    help = "run folders of memlab import, reported in their own section"
    parser.add_argument("--imported", nargs="+", type=Path, default=[], metavar="PATH", help=help)
    parser.add_argument("--note", type=Path, metavar="FILE", help="a text about the sweeps, added to the page")
    parser.add_argument("--section", type=Path, metavar="FILE", help="a section of its own, at the end of the page")
    help = "points of each imported series (default: 3)"
    parser.add_argument("--of-each", type=whole(2), default=3, metavar="N", help=help)
    help = "folder for the predicted records, for example for memlab figures"
    parser.add_argument("--records", type=Path, metavar="DIR", help=help)
    help = "write the errors from which probabilities are computed: memlab/prediction/memory/ratios.json"
    parser.add_argument("--ratios", type=Path, metavar="FILE", help=help)


def run(arguments: argparse.Namespace) -> None:
    from memlab.system.environment import package_versions
    from tools.accuracy.figure import draw_accuracy
    from tools.accuracy.page import document

    note = arguments.note.read_text(encoding="utf-8") if arguments.note else ""
    refused: list[tuple[str, str]] = []
    records = list(read_records(arguments.paths))
    pairs = [pair for name, some in of_sweeps(records) for pair in judged(name, some, refused, arguments.records)]
    points = [point for _, point in pairs]
    commands = list(judged_commands(records, kept_in=arguments.records))
    if not points and not commands:
        raise MemlabError(
            f"{' '.join(map(str, arguments.paths))}: no GPU record can be predicted. Name folders of measured runs."
        )
    imported = [
        point
        for name, some in of_sweeps(read_records(arguments.imported))
        for _, point in judged(
            name, [without_download(each) for each in evenly_chosen(some, arguments.of_each)], [], None
        )
    ]
    predictor = package_versions()
    known = kinds(truth.config for truth, point in pairs if "reserved" in point.errors)
    text = document(points, commands, predictor, refused, imported, known, note)
    if arguments.section:
        text += "\n" + arguments.section.read_text(encoding="utf-8")
    if arguments.output is None:
        print(text)
    else:
        _write(arguments.output / "accuracy.md", text)
        for file in draw_accuracy(points, arguments.output / "accuracy"):
            print(file)
        _write_json(arguments.output / "accuracy.json", to_json(points, commands, predictor, refused))
    if arguments.ratios:
        _write_json(arguments.ratios, {"predictor": predictor, "kinds": known, "ratios": reserved_ratios(points)})


def read_records(paths):
    """Yield (sweep, name, record) of each run folder below ``paths``, sorted by path."""
    for path in paths:
        for file in sorted(path.rglob(RunFolder.RECORD)):
            try:
                record = RunFolder(file.parent).read_record()
            except RecordError as error:
                print(f"skipped: {safe(error)}", file=sys.stderr)
                continue
            yield file.parent.parent.name, file.parent.name, record


def of_sweeps(records):
    """Yield (sweep, records) of memlab's own training: a command has no whole configuration to predict again."""
    for name, some in groupby(records, key=lambda each: each[0]):
        yield name, [record for _, _, record in some if not record.command]


def evenly_chosen(records, count: int):
    """Choose at most ``count`` records of a series, evenly spaced from its smallest to its largest point."""
    ordered = sorted(records, key=lambda record: shape_of(record.config))
    if len(ordered) <= count:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (count - 1))] for place in range(count)]


def without_download(record):
    """Replace the data set of a record by random tokens: memory does not depend on the values of the tokens."""
    return replace(record, config=replace(record.config, data=replace(record.config.data, source="random")))


def judged(name: str, measured, refused: list[tuple[str, str]], kept_in: Path | None):
    """Predict the measured records of a sweep; yield (record, point) of each, and print a line on standard error.

    A record that cannot be predicted is added to ``refused`` with the reason instead. ``kept_in``: folder to keep the
    predicted records in; ``None``: keep none.
    """
    from tools.accuracy.repredict import predictions

    for truth, guess in predictions(measured):
        where = f"{name}/{truth.run_id}"
        if guess.status not in ("ok", "gpu_oom"):
            refused.append((where, guess.reason or guess.status))
            print(safe(f"{where}: not predicted ({guess.reason})"), file=sys.stderr)
            continue
        point = judge(name, truth, guess)
        errors = " ".join(f"{quantity} {100 * error:+.2f} %" for quantity, error in point.errors.items())
        print(safe(f"{where}: {truth.status}, predicted {guess.status}; {errors}"), file=sys.stderr)
        if kept_in:
            folder = RunFolder(kept_in / name / truth.run_id)
            folder.claim()
            folder.finish(guess)
        yield truth, point


def judged_commands(records, kept_in: Path | None):
    """Predict the measured training commands again; yield each beside its prediction, and print a line.

    ``kept_in``: folder to keep the predicted run folders in.
    """
    from tools.accuracy.commands import measured_commands

    with TemporaryDirectory() as scratch:
        for measured in measured_commands(records):
            folder = (kept_in or Path(scratch)) / measured.sweep / measured.name
            command = measured.judged(measured.predicted_again(RunFolder(folder)))
            errors = " ".join(f"{quantity} {100 * error:+.2f} %" for quantity, error in command.errors.items())
            outcome = f"{command.measured}, predicted {command.predicted}; {errors or command.reason}"
            print(safe(f"{measured.sweep}/{measured.name}: {outcome}"), file=sys.stderr)
            yield command


def _write(file: Path, text: str) -> None:
    write_output(file, text.encode())
    print(file)


def _write_json(file: Path, values) -> None:
    _write(file, json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    start(add_arguments, run, __doc__)
