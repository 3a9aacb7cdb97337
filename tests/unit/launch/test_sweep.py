"""A whole sweep, with a short script in place of deepspeed: every job gets its record, in as few launches as can be."""

import os
import threading
import time
from collections import Counter

import pytest

from memlab.core.config import Sweep
from memlab.core.sizes import GIB
from memlab.files.json_file import read_json
from memlab.launch.schedule import group_into_launches
from memlab.launch.sweep import MeasuredSweep
from memlab.runs.job import Job
from memlab.runs.results import JobResult, Schedule, SweepObserver, is_complete
from memlab.system.machine import Gpu, Machine

CPU = Machine()

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def jobs(job):
    """``jobs([1, 2], {"zero_stage.stage": 1})``: a job for each length."""
    return lambda lengths, changes=None: [job({"seq_len.tokens": length, **(changes or {})}) for length in lengths]


class Told(SweepObserver):
    """Remembers what it is told; ``act`` is called after each result."""

    def __init__(self, act=lambda result: None):
        self.act, self.launches, self.results = act, [], []

    def launched(self, jobs, gpu_ids) -> None:
        self.launches.append([job.config.seq_len.tokens for job in jobs])

    def finished(self, result: JobResult) -> None:
        self.results.append(result)
        self.act(result)


def swept(
    jobs, force: bool = False, observer: SweepObserver | None = None, seed: int = 0, **options
) -> list[JobResult]:
    return MeasuredSweep(CPU, Sweep(**options), force, observer or Told()).run(jobs, seed)


def scheduled(jobs: list[Job], force: bool = False, **options) -> Schedule:
    return MeasuredSweep(CPU, Sweep(**options), force, SweepObserver()).schedule(jobs)


def ends(results: list[JobResult]) -> list[tuple[int, str, str]]:
    """Length, way and status of each job."""
    return [
        (result.job.config.seq_len.tokens, result.how, result.record.status if result.record else "-")
        for result in results
    ]


# --- twelve jobs, and everything that can go wrong

TROUBLE = {"2/1x4": "oom", "1/1x2": "hang", "3/1x2": "die"}


@pytest.fixture
def twelve(job, jobs):
    def build():
        return [
            *jobs([5, 3, 4, 1, 2]),  # out of memory at 4
            *jobs([1], {"zero_stage.stage": 1}),
            *jobs([2], {"zero_stage.stage": 1, "measure.timeout_s": 1}),  # hangs
            *jobs([3], {"zero_stage.stage": 1}),
            *jobs([1, 2, 3], {"zero_stage.stage": 3}),  # a rank is killed at 2
            job({"offload.param": "cpu"}),  # means nothing at stage 2
        ]

    return build


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


# --- which launches


def test_jobs_that_differ_in_shape_share_a_launch_smallest_first(deepspeed, job, jobs):
    played, told = deepspeed(), Told()
    mixed = [*jobs([30, 10]), job({"seq_len.tokens": 10, "batch.micro": 2}), *jobs([15], {"seed": 1})]
    results = swept(mixed, observer=told)
    assert told.launches == [[10, 10, 30], [15]] and played.launches == 2
    assert played.names[:2] == [mixed[1].folder.path.name, mixed[2].folder.path.name]
    assert [result.record.isolation for result in results] == ["shared", "shared", "shared", "fresh"]


def test_a_fresh_launch_for_each_job_where_it_is_wanted(deepspeed, jobs):
    played = deepspeed()
    results = swept(jobs([3, 1, 2]), isolation="fresh")
    assert played.launches == 3
    assert {result.record.isolation for result in results} == {"fresh"}


def test_a_job_that_is_asked_for_twice_runs_once(deepspeed, jobs):
    played = deepspeed()
    assert len(swept([*jobs([1, 2]), *jobs([1])])) == 2
    assert set(played.times.values()) == {1}


def test_many_jobs_are_several_launches(jobs, monkeypatch):
    monkeypatch.setattr("memlab.launch.schedule.JOBS_PER_LAUNCH", 2)
    launches = group_into_launches(jobs([5, 4, 3, 2, 1]), "shared", 0)
    assert [[job.config.seq_len.tokens for job in launch] for launch in launches] == [[1, 2], [3, 4], [5]]


def test_points_from_process_start_share_no_launch(jobs):
    launches = group_into_launches(jobs([3, 2, 1], {"measure.protocol": "cold"}), "shared", 0)
    assert [len(launch) for launch in launches] == [1, 1, 1]


def test_repeats_come_in_later_rounds(deepspeed, jobs):
    played = deepspeed()
    lengths = [1, 2, 3]
    rounds = [jobs(lengths, {"measure.repeat": repeat}) for repeat in (1, 2, 3)]
    swept([job for point in zip(*rounds, strict=True) for job in point])  # as memlab makes them: point by point
    names = [{job.folder.path.name for job in jobs} for jobs in rounds]
    assert [set(played.names[start : start + 3]) for start in (0, 3, 6)] == names
    assert played.launches == 3


def test_each_round_has_an_order_of_its_own_that_the_seed_decides(jobs):
    stages = (0, 1, 2, 3)
    repeats = [
        job
        for repeat in (1, 2, 3)
        for stage in stages
        for job in jobs([1], {"zero_stage.stage": stage, "measure.repeat": repeat})
    ]

    def order(seed: int) -> list[int]:
        return [launch[0].config.zero_stage.stage for launch in group_into_launches(repeats, "shared", seed)]

    assert order(0) == order(0)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1
    assert all(sorted(order(0)[start : start + 4]) == list(stages) for start in (0, 4, 8))


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("isolation", ["shared", "fresh"])
def test_a_third_of_a_round_lies_between_an_experiment_and_its_repeat(jobs, count, isolation):
    repeats = [
        one
        for repeat in range(1, 7)
        for seed in range(count)
        for one in jobs([1], {"seed": seed, "measure.repeat": repeat})
    ]
    for chance in range(20):
        order = [launch[0].config.seed for launch in group_into_launches(repeats, isolation, chance)]
        distances = [
            order.index(seed, place + 1) - place for place, seed in enumerate(order) if seed in order[place + 1 :]
        ]
        assert len(order) == 6 * count and min(distances) > count / 3


def test_a_round_of_repeats_begins_when_the_one_before_it_is_over(deepspeed, jobs):
    played = deepspeed("note('begin'); time.sleep(0.2); write(folders[0], 0); note('end')")
    repeats = [one for repeat in (1, 2, 3) for one in jobs([1], {**ON_ONE, "measure.repeat": repeat})]
    assert is_complete(MeasuredSweep(GPUS, Sweep(), False, Told()).run(repeats))
    assert played.names == ["begin", "end"] * 3  # although there are two GPUs


# --- pruning


@pytest.fixture
def grid(job):
    """Lengths 10, 20 and 30 at batches 1 and 2; and longer ones of another configuration."""
    points = [{"seq_len.tokens": tokens, "batch.micro": micro} for micro in (1, 2) for tokens in (10, 20, 30)]
    return lambda: [job(point) for point in points] + [job({"seq_len.tokens": 99, "seed": 1})]


def test_what_is_larger_than_an_oom_is_implied(deepspeed, grid):
    played = deepspeed(acts={"2/1x20": "oom", "2/2x10": "ok"})
    results = swept(grid())
    assert [result.how for result in results] == [
        "measured",
        "measured",
        "implied",
        "measured",
        *["implied"] * 2,
        "measured",
    ]
    [oom] = [result for result in results if result.how == "measured" and result.record.status == "gpu_oom"]
    for result in results:
        if result.how == "implied":
            assert result.record.status == "gpu_oom"
            assert result.record.reason == f"implied by {oom.record.run_id}"
            assert result.job.folder.read_record() == result.record
    assert played.launches == 3  # up to the OOM, on after it (batch 2 at 10), the other configuration


def test_without_pruning_everything_runs(deepspeed, grid):
    played = deepspeed(acts={"2/1x20": "oom"})
    assert {result.how for result in swept(grid(), prune=False)} == {"measured"}
    assert len(played.times) == 7


def test_an_oom_of_an_earlier_sweep_implies_too(deepspeed, jobs):
    played = deepspeed(acts={"2/1x2": "oom"})
    swept(jobs([1, 2]))
    results = swept(jobs([1, 2, 3]))
    assert ends(results) == [(1, "done", "ok"), (2, "done", "gpu_oom"), (3, "implied", "gpu_oom")]
    assert len(played.names) == 2


def test_memory_does_not_depend_on_which_repeat_it_is(deepspeed, jobs):
    played = deepspeed(acts={"2/1x2": "oom"})
    results = swept([*jobs([1, 2, 3]), *jobs([1, 2, 3], {"measure.repeat": 2})])
    assert [how for _, how, _ in ends(results)] == ["measured", "measured", "implied", "measured", "implied", "implied"]
    assert len(played.names) == 3


def test_host_memory_grows_as_well(deepspeed, jobs):
    deepspeed(acts={"2/1x2": "host_oom"})
    results = swept(jobs([1, 2, 3]))
    assert ends(results) == [(1, "measured", "ok"), (2, "measured", "host_oom"), (3, "implied", "host_oom")]
    assert results[2].record.reason == f"implied by {results[1].record.run_id}"
    assert ends(swept(jobs([2, 3]), prune=False)) == [(2, "done", "host_oom"), (3, "measured", "ok")]


def test_a_failure_implies_nothing(deepspeed, jobs):
    deepspeed(acts={"2/1x1": "fail"})
    assert ends(swept(jobs([1, 2]))) == [(1, "measured", "failed"), (2, "measured", "ok")]


def test_what_was_implied_is_measured_when_pruning_is_switched_off(deepspeed, jobs):
    deepspeed(acts={"2/1x1": "oom"})
    swept(jobs([1, 2]))
    assert scheduled(jobs([1, 2]), prune=False).launches != []
    assert ends(swept(jobs([1, 2]), prune=False)) == [(1, "done", "gpu_oom"), (2, "measured", "ok")]


def test_what_implies_is_what_was_seen(deepspeed, jobs):
    deepspeed(acts={"2/1x1": "oom"})
    first = swept(jobs([1, 2]))
    last = swept(jobs([2, 3, 1]))
    assert [result.how for result in last] == ["done", "implied", "done"]
    assert last[1].record.reason == f"implied by {first[0].record.run_id}"


# --- ending early


@pytest.mark.parametrize("options", [{"max_hours": 1e-9}, {"max_usd": 1e-9}])
def test_a_budget_ends_the_sweep_with_what_is_done_kept(deepspeed, jobs, options):
    played = deepspeed(acts={"2/1x2": "hang"})
    wanted = jobs([1, 2, 3], {"hardware.usd_per_hour": 100.0})
    sweep = MeasuredSweep(CPU, Sweep(**options), False, Told())
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
    sweep = MeasuredSweep(CPU, Sweep(max_hours=1.0), False, Told())

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
    sweep = MeasuredSweep(CPU, Sweep(), False, Told())
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
    sweep = MeasuredSweep(CPU, Sweep(), False, Told())
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
    assert "unexpected ZeroDivisionError: no such thing (test_sweep.py, line " in results[0].record.reason


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


# --- several at once


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
    sweep = MeasuredSweep(CPU, Sweep(), False, told)
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


GPUS = Machine(tuple(Gpu(str(index), "NVIDIA H200", GIB, (9, 0)) for index in range(2)))
ON_ONE = {"hardware.device": "cuda", "hardware.gpus": 1, "hardware.gpu": "H200"}
TOGETHER = """
note(pathlib.Path(folders[0]).name)
until = time.time() + 20
while open(notes).read().count("launch") < 2 and time.time() < until:
    time.sleep(0.02)
raise SystemExit(1) if time.time() > until else write(folders[0], 0)
"""


@pytest.mark.parametrize("options", [{}, {"side_by_side": "always"}])
def test_small_jobs_run_side_by_side(deepspeed, jobs, options):
    deepspeed(TOGETHER)  # none gets on before there are two
    wanted = [*jobs([1], ON_ONE), *jobs([1], {**ON_ONE, "seed": 1})]
    assert is_complete(MeasuredSweep(GPUS, Sweep(**options), False, Told()).run(wanted))


@pytest.mark.parametrize(("options", "changes"), [({"side_by_side": "never"}, {}), ({}, {"offload.optimizer": "cpu"})])
def test_jobs_that_would_disturb_each_other_run_one_by_one(deepspeed, jobs, options, changes):
    played = deepspeed("note('x'); time.sleep(0.1); write(folders[0], 0); note('end')")
    wanted = [job for seed in range(3) for job in jobs([1], {**ON_ONE, **changes, "seed": seed})]
    assert is_complete(MeasuredSweep(GPUS, Sweep(**options), False, Told()).run(wanted))
    assert played.names == ["x", "end"] * 3


def test_ranks_on_the_cpu_of_a_machine_with_one_gpu_run_one_launch_at_a_time(deepspeed, jobs):
    deepspeed()
    sweep = MeasuredSweep(Machine(GPUS.gpus[:1]), Sweep(), False, Told())
    watch = threading.Timer(10, sweep.stop.set)  # it once waited for a second GPU for ever
    watch.start()
    assert is_complete(sweep.run([*jobs([1]), *jobs([1], {"seed": 1})]))
    watch.cancel()


# --- before it runs


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
