"""Every job of a sweep gets its record, whatever happens, and a sweep that goes on runs what is missing."""

from collections import Counter

import pytest
from played_sweeps import TROUBLE, ends, scheduled, swept

from memlab.files.json_file import read_json
from memlab.runs.job import is_complete

pytestmark = pytest.mark.usefixtures("quick")


TABLE = [
    *((5, "implied", "gpu_oom"), (3, "measured", "ok"), (4, "measured", "gpu_oom"), (1, "measured", "ok")),
    *((2, "measured", "ok"), (1, "measured", "ok"), (2, "measured", "timeout"), (3, "measured", "ok")),
    *((1, "measured", "ok"), (2, "measured", "failed"), (3, "measured", "ok"), (512, "unsupported", "unsupported")),
]


def test_every_job_has_its_record_whatever_happens(deepspeed, twelve):
    played = deepspeed(acts=TROUBLE)
    results = swept(twelve())
    assert ends(results) == TABLE
    assert [result.record for result in results] == [job.folder.read_record() for job in twelve()]
    assert not is_complete(results)
    # One launch of stage 2; of the others, one up to the trouble and one after it.
    assert played.launches == 5
    assert set(played.times.values()) == {1} and len(played.times) == 10
    assert Counter(result.record.isolation for result in results if result.how == "measured") == {
        "shared": 8,
        "fresh": 2,
    }


def test_a_resumed_sweep_runs_what_is_missing_and_nothing_else(deepspeed, twelve):
    deepspeed(acts=TROUBLE)
    first = swept(twelve())
    (first[3].job.folder.path / "record.json").unlink()
    before = deepspeed().times
    played = deepspeed()
    results = swept(twelve())
    assert Counter(result.how for result in results) == {"done": 8, "unsupported": 1, "measured": 3}
    again = [results[index] for index in (3, 6, 9)]  # the lost one, the hang, the killed one
    assert {(result.how, result.record.status) for result in again} == {("measured", "ok")}
    assert played.times - before == Counter(result.job.folder.path.name for result in again)
    assert is_complete(results)
    assert Counter(result.how for result in swept(twelve())) == {"done": 11, "unsupported": 1}


def test_force_runs_everything_again(deepspeed, jobs):
    played = deepspeed()
    swept(jobs([1, 2]))
    assert [result.how for result in swept(jobs([1, 2]), force=True)] == ["measured"] * 2
    assert set(played.times.values()) == {2}


def test_assorting_starts_and_writes_nothing(deepspeed, twelve, tmp_path):
    played = deepspeed()
    found = scheduled(twelve())
    assert [(result.how, result.record) for result in found.known] == [("unsupported", None)]
    assert [[job.config.seq_len.tokens for job in launch] for launch in found.launches] == [
        [1, 2, 3, 4, 5],
        [1, 2, 3],
        [1, 2, 3],
    ]
    assert played.launches == 0 and not (tmp_path / "runs").exists()


def test_what_is_done_is_not_assorted_into_a_launch_unless_forced(deepspeed, jobs):
    deepspeed()
    swept(jobs([1]))
    assert scheduled(jobs([1, 2])).known[0].how == "done"
    assert scheduled(jobs([1, 2]), force=True).known == []


def test_what_composed_a_job_is_saved_for_every_job_that_gets_a_record(deepspeed, twelve):
    deepspeed(acts=TROUBLE)
    wanted, prepared = twelve(), []
    for job in wanted:
        job.prepare = lambda job=job: prepared.append(job.folder.path.name)
    swept(wanted)
    assert set(prepared) == {job.folder.path.name for job in wanted}
    assert read_json(wanted[-1].folder.path / "plan.json")["command"] == []
