"""A run and its single changes as predictions."""

from types import SimpleNamespace

import pytest

from memlab.core.errors import MemlabError
from memlab.planner.changed_runs import ChangedCommands
from memlab.runs.folder import RunFolder


@pytest.mark.parametrize("ranks", [[], [{"rank": 0, "attached": None}]])
def test_a_command_whose_record_knows_nothing_of_its_script_has_no_changes(tmp_path, ranks):
    """A prediction that ended before its first step has a record without ranks."""
    record = SimpleNamespace(ranks=ranks)
    with pytest.raises(MemlabError, match=f"{tmp_path}: the record has no facts about the script.*Predict it again"):
        ChangedCommands(RunFolder(tmp_path), record, {}, lambda *progress: None)
