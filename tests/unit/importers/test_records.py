"""Imported records become run folders like any other."""

import pytest

from memlab.analyse.collect import collect
from memlab.analyse.diff import compare
from memlab.core.errors import MemlabError
from memlab.importers.csv_table import write_records
from memlab.importers.gpjt_study import guess_configuration, to_records

TWO_GPUS = """\
1, 0, 0, 900, 1000, 2.0
1, 950, 1100, 0, 0, 2.0
2, 1950, 2100, 0, 0, 1.0
2, 0, 0, 1900, 2000, 1.0
3, OOM
3, OOM
"""


def test_imported_records_are_run_folders_like_any_other(csv_file, tmp_path):
    file = csv_file(TWO_GPUS)
    write_records(to_records(file, guess_configuration(file)), tmp_path / "out")
    write_records(to_records(file, guess_configuration(file)), tmp_path / "out")  # again is no error
    collection = collect([tmp_path / "out"])
    assert not collection.skipped
    assert [run.incomplete for run in collection.runs] == [[], [], []]
    assert collection.runs[0].run_id == collection.runs[0].path.split("/")[-1]
    assert [change.key for change in compare(collection.runs[:2]).values] == ["batch.micro"]


def test_a_run_from_elsewhere_is_not_replaced(csv_file, tmp_path):
    file = csv_file(TWO_GPUS)
    study_file = guess_configuration(file)
    write_records(to_records(file, study_file), tmp_path / "out")
    with pytest.raises(MemlabError, match="from another source"):
        write_records(to_records(csv_file(TWO_GPUS, "copy.csv"), study_file), tmp_path / "out")
