"""The end of a training that is measured from inside its script: rank 0 waits for the files of the others."""

import threading

import pytest

from memlab.files.json_file import write_json
from memlab.launch.user_command import by_hand
from memlab.runs.folder import RunFolder


@pytest.fixture
def write(tmp_path, rank):
    """``write(0, ended="running")``: the file of a rank, with these facts."""
    return lambda number, **facts: write_json(folder(tmp_path).rank_file(number), rank(number, attached=facts))


def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path)


def test_rank_0_waits_until_each_rank_has_ended(tmp_path, write):
    write(0, ended="finished", world_size=2)
    write(1, ended="running", world_size=2)
    waits = threading.Thread(target=by_hand._wait_for_ranks, args=[folder(tmp_path)])
    waits.start()
    waits.join(0.5)
    assert waits.is_alive()
    write(1, ended="failed", world_size=2)
    waits.join(10)
    assert not waits.is_alive()


@pytest.mark.parametrize("facts", [{}, {"ended": "finished"}, {"world_size": None, "ended": "finished"}])
def test_facts_that_a_file_lacks_are_not_waited_for(tmp_path, write, facts):
    write(0, **facts)
    by_hand._wait_for_ranks(folder(tmp_path))


def test_a_file_of_another_form_is_as_none(tmp_path, write, monkeypatch):
    monkeypatch.setattr(by_hand, "WAIT_S", 0.2)
    write(0, ended="finished", world_size=2)
    write_json(folder(tmp_path).rank_file(1), {"rank": 1, "attached": {"ended": 3}})
    by_hand._wait_for_ranks(folder(tmp_path))
    write_json(folder(tmp_path).rank_file(0), [])
    by_hand._wait_for_ranks(folder(tmp_path))
