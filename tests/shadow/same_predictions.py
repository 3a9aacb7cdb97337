"""``python tests/shadow/same_predictions.py RESULTS BEFORE``: prove that a change of the code changes no prediction.

BEFORE holds predicted records of the measured runs in RESULTS, made with the code before the change:
``python -m tools.accuracy RESULTS --records BEFORE``. All points and commands are predicted again with the code of
today and with an empty cache. Every figure must be equal, bit for bit; only the times of tracing and replay may differ.
Of a command's ranks, facts about the machine and the run folder are left out, such as paths and process numbers.

With ``--points`` it is a sample, without commands. A record depends on the other points that share its traces, because
the traces of some points are interpolated from the others. So the sample consists of whole groups of points that share
traces, drawn in turn from each sweep.
"""

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memlab.core.plan import make_plan
from memlab.core.record import Record
from memlab.prediction.traces.store import trace_folder
from memlab.runs.folder import RunFolder
from tools.accuracy.__main__ import of_sweeps, read_records
from tools.accuracy.commands import MeasuredCommand, measured_commands
from tools.accuracy.repredict import predictions

TIMES = ("trace_s", "total_s", "trace_cpu_s")
"""Keys of times that the prediction itself took."""

COMPARED = ("status", "reason", "isolation", "before_in_launch", "summary", "ranks", "steps", "timing")

OF_A_COMMAND = ("phases", "peak", "growth", "steps", "ended", "failed_in", "where")
"""Keys in ``attached`` of a command's ranks that are compared."""

IN_NO_ORDER = ("curve",)
"""Keys of a command's ranks that differ from run to run: Python frees some tensors in no fixed order."""

Group = list[tuple[str, str]]
"""Points that share traces: (sweep, run id) of each."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("results", type=Path, metavar="RESULTS", help="folder of the measured sweeps")
    parser.add_argument("before", type=Path, metavar="BEFORE", help="folder of their predictions before the change")
    parser.add_argument("--points", type=int, metavar="N", help="a sample of at least so many points, no commands")
    parser.add_argument("--seed", default="0", metavar="WORD", help="another word draws another sample")
    parser.add_argument(
        "--seconds",
        type=float,
        default=25.0,
        help="leave groups out of a sample that took longer (default: %(default)s)",
    )
    arguments = parser.parse_args()
    read = list(read_records([arguments.results]))
    measured = {name: records for name, records in of_sweeps(read) if (arguments.before / name).is_dir()}
    before = {
        (name, record.run_id): RunFolder(arguments.before / name / record.run_id).read_record()
        for name, records in measured.items()
        for record in records
        if (arguments.before / name / record.run_id / RunFolder.RECORD).exists()
    }
    sample = set(before if arguments.points is None else drawn(groups(measured, before), before, arguments))
    known = [each for each in measured_commands(read) if (place(arguments, each).path / RunFolder.RECORD).exists()]
    commands = [] if arguments.points else known
    checked = different = 0

    def compare(name: str, old: Record, now: Record) -> None:
        nonlocal checked, different
        changes = list(differences(figures(old), figures(now)))
        checked, different = checked + 1, different + bool(changes)
        print(f"{name}: {'; '.join(changes[:5]) or 'equal'}", flush=True)

    with tempfile.TemporaryDirectory(prefix="memlab-same-") as scratch:
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        for name, records in measured.items():
            chosen = [record for record in records if (name, record.run_id) in sample]
            for truth, now in predictions(chosen):
                compare(f"{name}/{truth.run_id}", before[name, truth.run_id], now)
        for each in commands:
            folder = RunFolder(Path(scratch) / each.sweep / each.name)
            compare(f"{each.sweep}/{each.name}", place(arguments, each).read_record(), each.predicted_again(folder))
    due = len(sample) + len(commands)
    print(f"{checked} of {due} points and commands predicted again: {different} differ")
    return 1 if different or checked < due else 0


def place(arguments: argparse.Namespace, command: MeasuredCommand) -> RunFolder:
    """Return the run folder of a command's prediction before the change."""
    return RunFolder(arguments.before / command.sweep / command.name)


def groups(measured: Mapping[str, Sequence[Record]], before: Mapping[tuple[str, str], Record]) -> list[Group]:
    """Group the points with a prediction by the traces that they share."""
    found: dict[Path, Group] = defaultdict(list)
    for name, records in measured.items():
        for record in records:
            if (name, record.run_id) in before:
                found[trace_folder(make_plan(record.config, record.choices))].append((name, record.run_id))
    return list(found.values())


def drawn(found: list[Group], before: Mapping[tuple[str, str], Record], arguments: argparse.Namespace) -> Group:
    """Draw groups from each sweep in turn until there are enough points."""
    cheap = [group for group in found if cost(before[point] for point in group) <= arguments.seconds]
    random.Random(arguments.seed).shuffle(cheap)
    by_sweep: dict[str, list[Group]] = defaultdict(list)
    for group in cheap:
        by_sweep[group[0][0]].append(group)
    in_turn = filter(None, itertools.chain.from_iterable(itertools.zip_longest(*by_sweep.values())))
    sample: Group = []
    while len(sample) < arguments.points and (group := next(in_turn, None)):
        sample += group
    return sample


def cost(records: Iterator[Record]) -> float:
    """Return the seconds that tracing (CPU time) and replaying took before."""
    return sum(
        record.timing["total_s"]
        - record.timing["trace_s"]
        + sum(rank["timing"]["trace_cpu_s"] for rank in record.ranks if rank["same_as_rank"] is None)
        for record in records
    )


def figures(record: Record) -> Any:
    """Return the values of a record that must stay equal, as they are on disk."""
    found = json.loads(json.dumps({key: value for key, value in record.to_json().items() if key in COMPARED}))
    for rank in found["ranks"] if record.command else ():
        rank["attached"] = {key: rank["attached"].get(key) for key in OF_A_COMMAND}
        for key in IN_NO_ORDER:
            rank.pop(key, None)
    return found


def differences(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield each value that differs: where it is, its value before, and its value now."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted((before.keys() | now.keys()) - set(TIMES)):
            yield from differences(before.get(key), now.get(key), f"{where}.{key}".removeprefix("."))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, f"{where}[{index}]")
    elif before != now or type(before) is not type(now):
        yield f"{where} was {str(before)[:60]}, is {str(now)[:60]}"


if __name__ == "__main__":
    sys.exit(main())
