"""A prediction of a command that is interrupted leaves a record, as a measurement does."""

import pytest

from memlab.core.config import Hardware
from memlab.core.errors import FolderError
from memlab.planner import user_command
from memlab.runs.folder import RunFolder


def test_an_interrupted_prediction_has_a_record(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(user_command, "traced_command", interrupted)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        user_command.predict_command(["python", "train.py"], Hardware(memory_gib=80.0), folder, None)
    record = folder.read_record()
    assert (record.status, record.source, folder.holds_result()) == ("interrupted", "predicted", False)


def test_a_folder_is_predicted_into_by_one_memlab_at_a_time(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.lock(), pytest.raises(FolderError, match="another memlab"):
        user_command.predict_command(["python", "train.py"], Hardware(memory_gib=80.0), folder, None)
