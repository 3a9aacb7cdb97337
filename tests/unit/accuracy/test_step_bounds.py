"""No lower bound of a step is above the step that was measured, in all of results/."""

import csv
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memlab.prediction.not_predicted import unpredictable
from memlab.runs.folder import RunFolder
from memlab.system.machine import Machine

RESULTS = Path(__file__).parents[3] / "results"


def stored_predictions(sweep: str) -> Iterator[tuple[str, dict, dict]]:
    """Yield the name of each run that was measured and predicted, and the summaries of both."""
    with tarfile.open(RESULTS / sweep / "records.tgz") as archive:
        records = {
            tuple(member.name.split("/")[-3:-1]): json.load(archive.extractfile(member))["summary"]
            for member in archive
            if member.name.endswith("record.json")
        }
    for (source, name), summary in records.items():
        if source == "measured" and "step_seconds" in summary and ("predicted", name) in records:
            yield name, summary, records["predicted", name]


@pytest.mark.parametrize(("sweep", "least"), [("explain", 6), ("profile", 6), ("growth_and_bounds_1xH200", 5)])
def test_no_bound_of_a_stored_prediction_is_above_its_measurement(sweep, least):
    runs = list(stored_predictions(sweep))
    assert len(runs) >= least
    assert [name for name, measured, of in runs if of["step_seconds_lower_bound"] > measured["step_seconds"]] == []


def measured_steps() -> dict[tuple[str, str], float]:
    """Seconds of the measured steps of results/ by sweep and run: of runs that ended well and can be predicted."""
    records = {path.parent: RunFolder(path.parent).read_record() for path in RESULTS.glob(f"*/*/{RunFolder.RECORD}")}
    return {
        (folder.parent.name, folder.name): record.summary["step_seconds"]
        for folder, record in records.items()
        if record.status == "ok" and "step_seconds" in record.summary
        if record.command or not unpredictable(record.config)
    }


def test_no_bound_of_a_measured_step_is_above_it(monkeypatch):
    monkeypatch.setattr(Machine, "has_package", staticmethod(lambda name: True))
    with (RESULTS / "step_bounds.csv").open(newline="") as file:
        rows = {(row["sweep"], row["run"]): row for row in csv.DictReader(file)}
    measured = measured_steps()
    assert rows.keys() == measured.keys()
    for run, row in rows.items():
        assert float(row["measured_s"]) == pytest.approx(measured[run], rel=1e-5)
        assert float(row["lower_bound_s"]) <= float(row["measured_s"]), row
        assert float(row["lower_bound_s"]) <= float(row["calibrated_s"]), row
