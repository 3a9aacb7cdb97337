"""Sweeps of two memlabs in one folder: each job is measured once."""

import os
import threading
from collections import Counter

import pytest
from played_sweeps import CPU, Told, ends, measuring, swept

from memlab.core.config import Sweep
from memlab.runs.job import JobResult, is_complete

pytestmark = pytest.mark.usefixtures("quick")


def test_two_sweeps_at_once_measure_each_job_once(deepspeed, jobs):
    played = deepspeed("for folder in folders:\n    note(pathlib.Path(folder).name); time.sleep(0.1); both(folder)")
    wanted = [*jobs([1, 2, 3]), *jobs([1, 2], {"seed": 1})]
    results: list[list[JobResult]] = []
    threads = [threading.Thread(target=lambda: results.append(swept(wanted))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 2 and all(is_complete(found) for found in results)
    assert played.times == Counter(job.folder.path.name for job in wanted)
    assert Counter(result.how for found in results for result in found) == {"measured": 5, "done": 5}


def test_what_another_memlab_holds_is_waited_for_and_who_it_is_is_told_once(deepspeed, jobs):
    deepspeed()
    told, [one] = Told(), jobs([1])
    told.waits = []
    told.waiting = told.waits.append
    sweep = measuring(CPU, Sweep(), told)
    with one.folder.lock():
        watch = threading.Timer(2.5, sweep.stop.set)
        watch.start()
        assert ends(sweep.run(jobs([1]))) == [(1, "not reached", "-")]
    [text] = told.waits
    assert str(one.folder) in text and f"pid {os.getpid()} on " in text and "kill PID" in text


def test_a_folder_that_another_memlab_holds_gets_no_record_of_what_means_nothing_here(deepspeed, job):
    deepspeed()
    one = job({"offload.param": "cpu"})
    with one.folder.lock():
        [result] = swept([job({"offload.param": "cpu"})])
        assert result.record.status == "unsupported"
        assert not (one.folder.path / "record.json").exists()
    [result] = swept([job({"offload.param": "cpu"})])
    assert result.record == one.folder.read_record()
