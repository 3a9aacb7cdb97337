"""A sweep that ends before its last job: limits, signals, exceptions."""

import time

import pytest
from played_sweeps import CPU, Told, ends, measuring, swept

from memlab.core.config import Sweep
from memlab.runs.job import Job, is_complete

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("options", [{"max_hours": 1e-9}, {"max_usd": 1e-9}])
def test_a_budget_ends_the_sweep_with_what_is_done_kept(deepspeed, jobs, options):
    played = deepspeed(acts={"2/1x2": "hang"})
    wanted = jobs([1, 2, 3], {"hardware.usd_per_gpu_hour": 100.0})
    sweep = measuring(CPU, Sweep(**options), Told())
    monotonic = time.monotonic
    sweep._began = monotonic() + 3600  # not over it yet
    sweep.observer.act = lambda result: setattr(sweep, "_began", monotonic() - 3600)
    results = sweep.run(wanted)
    assert ends(results) == [(1, "measured", "ok"), (2, "not reached", "-"), (3, "not reached", "-")]
    assert played.launches == 1 and not sweep.interrupted and not is_complete(results)
    assert not any((job.folder.path / "record.json").exists() for job in wanted[1:])


def test_a_budget_ends_a_job_under_way(deepspeed, jobs):
    """With a record that says so; the next sweep measures it."""
    deepspeed(acts={"2/1x2": "hang"})
    sweep = measuring(CPU, Sweep(max_hours=1.0), Told())

    def nearly_over(result):
        sweep._began = time.monotonic() - 3600 + 0.5
        sweep.observer.act = lambda result: None

    sweep.observer.act = nearly_over
    results = sweep.run(jobs([1, 2, 3]))
    assert ends(results) == [(1, "measured", "ok"), (2, "measured", "interrupted"), (3, "not reached", "-")]
    assert "sweep.max_hours=1 " in results[1].record.reason
    deepspeed()
    assert [how for _, how, _ in ends(swept(jobs([1, 2, 3])))] == ["done", "measured", "measured"]


def test_nothing_starts_over_budget(deepspeed, jobs):
    played = deepspeed()
    assert ends(swept(jobs([1]), max_hours=0.0)) == [(1, "not reached", "-")]
    assert played.launches == 0


def test_a_limit_in_dollars_without_a_price_never_ends_a_sweep(deepspeed, jobs):
    deepspeed()
    assert is_complete(swept(jobs([1]), max_usd=1e-9))


def test_a_stop_records_where_it_was_and_the_next_sweep_goes_on_there(deepspeed, jobs):
    played = deepspeed(acts={"2/1x2": "hang"})
    wanted = [*jobs([1, 2, 3]), *jobs([1], {"seed": 1})]
    sweep = measuring(CPU, Sweep(), Told())
    sweep.observer.act = lambda result: sweep.stop.set()
    results = sweep.run(wanted)
    assert ends(results)[:2] == [(1, "measured", "ok"), (2, "measured", "interrupted")]
    assert [result.how for result in results[2:]] == ["not reached"] * 2
    assert played.launches == 1
    deepspeed()
    assert [result.how for result in swept(wanted)] == ["done", *["measured"] * 3]


def test_ctrl_c_ends_the_sweep_with_a_result_for_every_job(deepspeed, jobs, monkeypatch):
    deepspeed(acts={"2/1x1": "hang"})

    def interrupted(futures, return_when):
        time.sleep(0.3)
        raise KeyboardInterrupt

    monkeypatch.setattr("memlab.launch.sweep.wait", interrupted)
    sweep = measuring(CPU, Sweep(), Told())
    assert ends(sweep.run(jobs([1, 2]))) == [(1, "measured", "interrupted"), (2, "not reached", "-")]
    assert sweep.interrupted


def test_an_exception_ends_its_own_points_alone(deepspeed, jobs, monkeypatch):
    """As a bug would, or a folder that cannot be written."""
    deepspeed()
    monkeypatch.setattr(Job, "start", fails_at_stage(3, Job.start))
    results = swept([*jobs([1, 2], {"zero_stage.stage": 3}), *jobs([1, 2])])
    assert ends(results) == [
        (1, "measured", "failed"),
        (2, "measured", "failed"),
        (1, "measured", "ok"),
        (2, "measured", "ok"),
    ]
    assert "unexpected ZeroDivisionError: no such thing (test_ending_early.py, line " in results[0].record.reason


def fails_at_stage(stage: int, start):
    def broken(self, command):
        if self.config.zero_stage.stage == stage:
            raise ZeroDivisionError("no such\nthing")
        start(self, command)

    return broken


def test_a_bug_of_the_observer_is_not_swallowed(deepspeed, jobs):
    deepspeed()

    def broken(result):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        swept(jobs([1, 2]), observer=Told(broken))
