"""Which jobs share a launch, in which order, and which run side by side."""

import threading

import pytest
from played_sweeps import GPUS, ON_ONE, Told, measuring, swept

from memlab.core.config import Sweep
from memlab.launch.sweep import group_into_launches
from memlab.runs.job import is_complete
from memlab.system.machine import Machine

pytestmark = pytest.mark.usefixtures("quick")


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
    monkeypatch.setattr("memlab.launch.sweep.JOBS_PER_LAUNCH", 2)
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
    assert is_complete(measuring(GPUS, Sweep(), Told()).run(repeats))
    assert played.names == ["begin", "end"] * 3  # although there are two GPUs


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
    assert is_complete(measuring(GPUS, Sweep(**options), Told()).run(wanted))


@pytest.mark.parametrize(("options", "changes"), [({"side_by_side": "never"}, {}), ({}, {"offload.optimizer": "cpu"})])
def test_jobs_that_would_disturb_each_other_run_one_by_one(deepspeed, jobs, options, changes):
    played = deepspeed("note('x'); time.sleep(0.1); write(folders[0], 0); note('end')")
    wanted = [job for seed in range(3) for job in jobs([1], {**ON_ONE, **changes, "seed": seed})]
    assert is_complete(measuring(GPUS, Sweep(**options), Told()).run(wanted))
    assert played.names == ["x", "end"] * 3


def test_ranks_on_the_cpu_of_a_machine_with_one_gpu_run_one_launch_at_a_time(deepspeed, jobs):
    deepspeed()
    sweep = measuring(Machine(GPUS.gpus[:1]), Sweep(), Told())
    watch = threading.Timer(10, sweep.stop.set)  # it once waited for a second GPU for ever
    watch.start()
    assert is_complete(sweep.run([*jobs([1]), *jobs([1], {"seed": 1})]))
    watch.cancel()
