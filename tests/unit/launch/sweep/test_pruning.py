"""What an out-of-memory implies for larger jobs."""

import pytest
from played_sweeps import ends, scheduled, swept

pytestmark = pytest.mark.usefixtures("quick")


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
