"""Predictions of a sweep: traced together, each with a record, and what cannot be traced is tried once."""

import pytest

from memlab.core.config import Sweep
from memlab.core.errors import ConfigError, MemlabError
from memlab.core.plan import make_plan
from memlab.launch.sweep import RunningSweep
from memlab.planner import training_sweep as sweep
from memlab.prediction import prediction as predict
from memlab.prediction.time.calibrate import Calibrations
from memlab.prediction.traces import choose_traces
from memlab.prediction.traces.store import trace_folder
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job, SweepObserver


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def traced(monkeypatch):
    """The traces that were to be made; those of stage 3 cannot be."""
    asked = []

    def make(tasks):
        asked.extend(tasks)
        bad = {trace_folder(task.plan) for task in tasks if task.plan.config.zero_stage.stage == 3}
        return dict.fromkeys(bad, "ValueError: no such layer")

    monkeypatch.setattr(sweep, "make", make)
    monkeypatch.setattr(predict, "predict", lambda plan: predict._record(plan, status="ok", steps={}))
    return asked


def running(force: bool = False, observer: SweepObserver | None = None, **options) -> RunningSweep:
    return RunningSweep(sweep.TrainingPredictions(force), Sweep(**options), observer or SweepObserver())


def predicted(jobs, **options):
    return running(**options).run(jobs)


@pytest.fixture
def job(config, tmp_path):
    def build(stage: int, tokens: int, **changes) -> Job:
        gpu = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "mode": "predict"}
        plan = make_plan(config({"zero_stage.stage": stage, "seq_len.tokens": tokens, **gpu, **changes}), {})
        return Job(plan, RunFolder(tmp_path / plan.run_id))

    return build


def test_every_job_has_a_record(job, traced):
    jobs = [job(stage, tokens) for tokens in (10, 20, 30, 40, 50, 60, 70) for stage in (2, 3)]
    results = predicted(jobs)
    assert {id(result.job) for result in results} == {id(each) for each in jobs}
    assert all(result.job.folder.read_record().status == result.record.status for result in results)
    found = {result.record.status for result in results if result.job.config.zero_stage.stage == 3}
    assert found == {"failed"}
    assert "no such layer" in next(result.record.reason for result in results if result.record.status == "failed")
    # Of seven lengths the two smallest, the middle and the largest decide the others.
    assert [task.key.tokens for task in traced if task.key.rank == 0] == 2 * [10, 20, 40, 70]


@pytest.mark.parametrize(
    ("lengths", "told"),
    [((10,), "tracing 1 point"), ((10, 20), "tracing 2 points"), (range(10, 70, 10), "tracing 4 points; the others")],
)
def test_what_is_traced_is_told_and_others_only_where_there_are_some(job, traced, lengths, told):
    class Observer(SweepObserver):
        def waiting(self, text):
            said.append(text)

    said = []
    predicted([job(2, tokens) for tokens in lengths], observer=Observer())
    assert [text.partition(" are")[0] for text in said] == [told]


def test_what_is_done_is_not_predicted_again(job, traced, monkeypatch):
    monkeypatch.setattr(sweep, "calibrations_of", lambda config: Calibrations(None, None))
    one = job(2, 10)
    predicted([one])
    (result,) = predicted([one])
    assert (result.how, [task.key.rank for task in traced]) == ("done", [0, 1])
    (forced,) = predicted([one], force=True)
    assert forced.how == "predicted"


def test_allocators_share_their_traces(job):
    jobs = [job(2, 10), job(2, 10, **{"allocator.conf": "expandable_segments:True"}), job(1, 10)]
    found = running().schedule(jobs)
    assert sorted(len(group) for group in found.launches) == [1, 2]


def test_what_cannot_be_predicted_is_recorded_so(job):
    (result,) = predicted([job(2, 10, **{"offload.param": "cpu"})])
    assert result.record.status == "unsupported" and "stage 3" in result.record.reason.lower()


def test_a_point_that_fails_takes_no_other_with_it(job, monkeypatch):
    """Three lengths, of which the longest cannot be traced: the others are there."""
    jobs = [job(2, tokens) for tokens in (10, 20, 4096)]
    reason = {trace_folder(jobs[0].plan): "MemoryError: killed"}
    there = lambda plan: None if plan.config.seq_len.tokens == 4096 else {}  # noqa: E731
    monkeypatch.setattr(sweep, "make", lambda tasks: reason)
    monkeypatch.setattr(sweep, "known_traces", there)
    monkeypatch.setattr(predict, "predict", lambda plan: predict._record(plan, status="ok", steps={}))
    results = predicted(jobs)
    assert [result.record.status for result in results] == ["ok", "ok", "failed"]


@pytest.mark.parametrize(
    "error", [ConfigError("no such option"), ZeroDivisionError("no such option"), OSError(13, "denied")]
)
def test_an_exception_of_a_point_is_the_end_of_that_point_alone(job, traced, monkeypatch, error):
    def record(plan):
        if plan.config.seq_len.tokens == 20:
            raise error
        return predict._record(plan, status="ok", steps={})

    monkeypatch.setattr(predict, "predict", record)
    results = predicted([job(2, tokens) for tokens in (10, 20, 30)])
    assert [result.record.status for result in results] == ["ok", "failed", "ok"]
    failed = results[1].job.folder.read_record()
    assert failed.status == "failed" and str(error) in failed.reason


def test_what_cannot_be_fitted_ends_its_own_points_alone(job, traced, monkeypatch):
    """In a second run, too, which asks first whether their records are still good."""

    def resolve(config):
        if config.predict.calibrate:
            raise MemlabError("too few to calibrate on")
        return Calibrations(None, None)

    def record(plan):
        resolve(plan.config)
        return predict._record(plan, status="ok", steps={})

    monkeypatch.setattr(sweep, "calibrations_of", resolve)
    monkeypatch.setattr(predict, "predict", record)
    jobs = [job(2, 10), job(2, 20, **{"predict.calibrate": "mine"})]
    jobs[1].start(command=[])
    jobs[1].folder.finish(predict._record(jobs[1].plan, status="ok", steps={}))
    results = predicted(jobs)
    assert {result.record.status: result.record.reason for result in results} == {
        "ok": None,
        "failed": "too few to calibrate on",
    }


def test_where_tracing_cannot_begin_every_point_says_why(job, monkeypatch):
    def refused(*arguments):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(choose_traces, "run_shadow", refused)
    results = predicted([job(2, tokens) for tokens in (10, 20)])
    assert [result.record.status for result in results] == ["failed", "failed"]
    assert all("Too many open files" in result.record.reason for result in results)


def test_a_signal_ends_the_sweep_and_what_is_done_stays(job, traced, monkeypatch):
    def record(plan):
        if plan.config.seq_len.tokens == 20:
            raise KeyboardInterrupt
        return predict._record(plan, status="ok", steps={})

    monkeypatch.setattr(predict, "predict", record)
    interrupted = running()
    results = interrupted.run([job(2, tokens) for tokens in (10, 20, 30)])
    assert interrupted.interrupted and [result.how for result in results] == ["predicted", "not reached", "not reached"]
    assert results[0].job.folder.read_record().status == "ok"


def test_a_limit_of_time_holds_for_predictions_too_and_an_out_of_memory_implies_nothing(job, traced, monkeypatch):
    monkeypatch.setattr(predict, "predict", lambda plan: predict._record(plan, status="gpu_oom", steps={}))
    jobs = [job(2, tokens) for tokens in (10, 20)]
    assert [result.how for result in predicted(jobs, max_hours=0.0)] == ["not reached"] * 2
    assert [result.how for result in predicted(jobs)] == ["predicted"] * 2
