"""Predicted and measured step times: ``python results/step_bounds.py PREDICTED SWEEP...`` from the repository's root.

Appends one row for each measured record of the sweeps of results/ to results/step_bounds.csv: the measured step, its
lower bound, and the step by the calibrated costs. memlab's own training is traced. Times of training commands are those
of their predictions, which ``make accuracy`` keeps in PREDICTED (outputs/accuracy). A record that cannot be traced has
no row.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

from memlab.core.errors import ShadowError
from memlab.core.plan import make_plan
from memlab.core.record import Record
from memlab.prediction.time.calibrate import shipped, usable
from memlab.prediction.time.clocks import LOWER_BOUND, has_clocks, step_seconds
from memlab.prediction.traces.choose_traces import trace_missing, traces
from memlab.runs.folder import RunFolder

HERE = Path(__file__).parent


def main() -> None:
    predicted, *sweeps = sys.argv[1:]
    with (HERE / "step_bounds.csv").open("a", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        if not file.tell():
            table.writerow(["sweep", "run", "measured_s", "lower_bound_s", "calibrated_s"])
        for sweep in sweeps:
            for name, *times in sorted([*of_own_training(sweep), *of_commands(sweep, Path(predicted))]):
                table.writerow([sweep, name, *(f"{seconds:.6g}" for seconds in times)])
            file.flush()


Row = tuple[str, float, float, float]


def of_own_training(sweep: str) -> Iterator[Row]:
    records = [record for record in usable([HERE / sweep]) if record.command is None]
    plans = [make_plan(record.config, record.choices) for record in records]
    trace_missing(plans)
    for record, plan in zip(records, plans, strict=True):
        try:
            traced = traces(plan)
        except ShadowError as error:
            print(f"{sweep}/{record.run_id}: {error}", file=sys.stderr)
            continue
        if has_clocks(record.config, traced.values()):
            bound, calibrated = (step_seconds(record.config, traced, costs) for costs in (LOWER_BOUND, shipped().costs))
            yield record.run_id, record.summary["step_seconds"], bound, calibrated


def of_commands(sweep: str, predicted: Path) -> Iterator[Row]:
    for file in (HERE / sweep).glob(f"*/{RunFolder.RECORD}"):
        measured, folder = RunFolder(file.parent).read_record(), predicted / sweep / file.parent.name
        if _is_timed_command(measured) and (folder / RunFolder.RECORD).exists():
            timing = RunFolder(folder).read_record().timing
            if timing.get("step_s_calibrated"):
                times = (timing["step_s_lower_bound"], timing["step_s_calibrated"])
                yield file.parent.name, measured.summary["step_seconds"], *times


def _is_timed_command(record: Record) -> bool:
    return record.command is not None and record.source == "measured" and "step_seconds" in record.summary


if __name__ == "__main__":
    main()
