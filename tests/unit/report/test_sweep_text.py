"""What a person sees of a sweep: before, during and after it."""

import io
import re
from pathlib import Path

import pytest
from played_sweeps import measuring
from rich.console import Console

from memlab.core.config import Sweep
from memlab.core.plan import make_plan
from memlab.report.sweep_text import Progress, show_preview, show_searches, show_summary
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job, JobResult, Schedule, SearchResult, SweepObserver
from memlab.system.machine import Machine

ROOT = Path("/outputs/mine")


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=160)


@pytest.fixture
def job(config, tmp_path):
    def build(**changes) -> Job:
        plan = make_plan(config({key.replace("__", "."): value for key, value in changes.items()}), {})
        return Job(plan, RunFolder(tmp_path / plan.run_id))

    return build


def text(console: Console) -> str:
    return console.file.getvalue()


def test_a_preview_says_what_shares_a_launch_and_makes_no_price_of_time_limits(job, console, tmp_path):
    priced = {"hardware__usd_per_gpu_hour": 18.0, "measure__timeout_s": 100}
    jobs = [job(seed=1, **priced), job(seed=1, seq_len__tokens=7, **priced), job(seed=2, **priced)]
    sweep = measuring(Machine(), Sweep(), SweepObserver())
    show_preview(sweep.schedule([*jobs, job(offload__param="cpu")]), tmp_path, console)
    shown = text(console)
    assert re.findall(r"(\d) +to run +\n", shown) == ["1", "1", "2"]
    assert shown.count("unsupported") == 1
    assert "\nUnsupported: 1 point (" in shown and "offload" in shown.partition("Unsupported: ")[2]
    assert "3 to run in 2 launches, 1 known without running\nsweep.guide=quote predicts " in shown
    assert "$" not in shown and "limit" not in shown


def test_a_preview_of_predictions_counts_no_launches(job, console, tmp_path):
    predicted = job(mode="predict")
    show_preview(Schedule(launches=[[predicted]]), tmp_path, console)
    assert "\n1 to predict, without cost, 0 known without running\n" in text(console)
    show_preview(Schedule(launches=[[predicted], [job()]]), tmp_path, console)
    assert "\n1 to predict, without cost, 1 to run in 1 launch, 0 known without running\n" in text(console)


def test_a_preview_names_the_folders_of_ones_own(job, console, tmp_path):
    own = Job(job().plan, RunFolder(tmp_path / "lr" / "0"))
    show_preview(Schedule(launches=[[own]]), tmp_path, console)
    assert re.search(rf"{own.plan.run_id} +lr/0 +1 +to run", text(console))
    show_preview(Schedule(launches=[[job()]]), tmp_path, console)
    assert text(console).count("folder") == 1


def test_a_preview_of_nothing(console):
    show_preview(Schedule(), ROOT, console)
    assert "0 to run in 0 launches, 0 known" in text(console)


def test_every_result_is_a_line_that_counts(job, record, console):
    progress = Progress(console)
    progress.began([[job(), job(seed=1)]], [])
    progress.launched([job()], ["0", "1"])
    progress.finished(JobResult(job(), record(), "measured"))
    oom = record(status="gpu_oom", reason="rank 0: [odd] no memory\nmore", summary={})
    progress.finished(JobResult(job(seed=1), oom, "implied"))
    progress.finished(JobResult(job(seed=2), record(), "done"))  # nothing new
    first, second, third = text(console).splitlines()
    assert first == "2 points to run in 1 launch; 0 known without running"
    assert second.split("  ") == ["1/2", "ok", job().plan.run_id, "0.500 s a step"]
    assert third.split("  ") == ["2/2", "gpu_oom", job(seed=1).plan.run_id, "rank 0: [odd] no memory"]


def test_the_live_display_shows_what_runs_and_not_what_is_over(job, record, console):
    progress, running = Progress(console), job(hardware__usd_per_gpu_hour=18.0)
    progress.began([[running]], [])
    progress.launched([running], [])
    console.print(progress)
    assert "CPU" in text(console) and running.plan.run_id in text(console) and "so far" in text(console)
    progress.finished(JobResult(running, record(), "measured"))
    assert progress.running == {}


def test_the_live_display_can_be_drawn_while_launches_come_and_go(job, record, console):
    progress = Progress(console)

    class Meanwhile:
        """As it is drawn, another launch begins and this one ends, as they do in other threads."""

        @property
        def plan(self):
            progress.launched([job(seed=1)], ["1"])
            progress.finished(JobResult(self, record(), "done"))
            return job().plan

    progress.launched([Meanwhile()], [])
    console.print(progress)
    assert job().plan.run_id in text(console)
    assert [jobs[0].config.seed for jobs in progress.running.values()] == [1]


def test_what_is_predicted_and_measured_in_one_sweep_is_one_count_with_its_time(job, record, console):
    progress = Progress(console)
    progress.began_at -= 60
    progress.began([[job(mode="predict"), job(seed=1, mode="predict")]], [])
    progress.finished(JobResult(job(mode="predict"), record(), "predicted"))
    assert progress._eta() == "about 1.0 min left"  # one took a minute, one is left
    progress.began([[job(), job(seed=1)]], [])
    progress.finished(JobResult(job(), record(), "measured"))
    progress.finished(JobResult(job(seed=1), record(), "implied"))  # which took no time
    assert progress._count() == "3/4" and progress._eta() == "about 0.5 min left"


def test_a_search_counts_what_it_has_tried_and_promises_no_end(job, record, console):
    progress, two = Progress(console), [[job(seed=seed, sweep__search="batch")] for seed in (1, 2)]
    progress.began(two, [])
    progress.finished(JobResult(job(seed=1, sweep__search="batch"), record(), "measured"))
    assert (progress._count(), progress._eta()) == ("1", "")


def test_a_search_whose_script_ends_before_its_steps_has_no_rate(job, record, console):
    early = record(summary={}, steps={"seconds": []})
    found = SearchResult(job(sweep__search="batch"), {1: early, 2: early}, best=2, confirmation=early)
    show_searches([found], console)
    assert "largest micro batch that trains: 2, confirmed over 0 steps\n" in text(console)


def test_a_wait_is_a_line(console):
    Progress(console).waiting("waiting for [x] and y")
    assert text(console) == "waiting for [x] and y\n"


def test_a_summary_counts_statuses_money_and_what_went_wrong(job, record, console):
    paid = job(hardware__usd_per_gpu_hour=18.0)
    results = [
        JobResult(paid, record(), "measured"),
        JobResult(job(seed=1), record(status="gpu_oom"), "implied"),
        JobResult(job(seed=2), record(status="timeout"), "measured"),
        JobResult(job(seed=3), record(status="unsupported"), "unsupported"),
        JobResult(job(seed=4), None, "not reached"),
    ]
    show_summary(results, ROOT, 100.0, console)
    shown = text(console)
    assert "5 points: 1 ok, 1 gpu_oom, 1 timeout, 1 unsupported, 1 not reached" in shown
    assert "2 measured, 1 implied, 1 not reached; 100 s, 50.0 s a measured point" in shown
    assert "$1.00 in all, $0.500 a measured point" in shown
    assert f"timeout: {results[2].job.folder}" in shown.replace("\n", "")
    assert f"run folders: {ROOT}" in shown


def test_a_sweep_that_was_interrupted_at_its_first_point_has_measured_none(job, record, console):
    results = [JobResult(job(), record(status="interrupted"), "measured"), JobResult(job(seed=1), None, "not reached")]
    show_summary(results, ROOT, 705.8, console)
    assert "2 points: 1 interrupted, 1 not reached\n  1 not reached; 706 s\n" in text(console)


def test_a_summary_of_nothing(console):
    show_summary([], ROOT, 0.1, console)
    assert text(console).startswith("0 points: ")
