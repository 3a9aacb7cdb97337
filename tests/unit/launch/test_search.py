"""The search for the largest size, with a stand-in for the launcher in which every batch above five is too large."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from played_sweeps import measuring

from memlab.core.config import Sweep
from memlab.launch.search import CONFIRMATION, RunningSearch, at_size, next_sizes
from memlab.runs.job import SearchResult, SweepObserver
from memlab.system.machine import Machine

pytestmark = pytest.mark.usefixtures("quick")

TOO_LARGE = {f"2/{batch}x512": "oom" for batch in range(6, 65)}


def searched(job, **options) -> RunningSearch:
    search = measuring(Machine(), Sweep(search="batch", **options), SweepObserver(), kind=RunningSearch)
    search.run([job])
    return search


@pytest.fixture
def batch_job(job):
    return job({"sweep.search": "batch"})


def known(job, **statuses: str) -> SearchResult:
    """What is known after these sizes were tried: ``known(job, b4="ok", b8="gpu_oom")``."""
    tried = {int(size[1:]): SimpleNamespace(status=status, summary={}) for size, status in statuses.items()}
    return SearchResult(job, tried)


def test_the_largest_is_found_in_few_launches_and_confirmed(deepspeed, batch_job):
    played = deepspeed(acts=TOO_LARGE)
    (found,) = searched(batch_job).found.values()
    assert {size: record.status for size, record in found.tried.items()} == {
        **dict.fromkeys((1, 2, 4, 5), "ok"),
        **dict.fromkeys((6, 8), "gpu_oom"),
    }
    assert found.best == 5
    assert found.confirmation.steps["measured"] == CONFIRMATION.steps
    assert played.launches == 4  # 1 2 4 8, then 6 7, then 5, then 5 once more and for longer


def test_a_search_that_was_done_starts_nothing(deepspeed, batch_job):
    deepspeed(acts=TOO_LARGE)
    searched(batch_job)
    before = deepspeed().launches
    (found,) = searched(batch_job).found.values()
    assert found.best == 5
    assert deepspeed().launches == before


def test_what_fails_for_another_reason_ends_the_search(deepspeed, batch_job):
    deepspeed(acts={"2/4x512": "fail"})
    (found,) = searched(batch_job).found.values()
    assert found.best is None and "ended as failed" in found.gave_up


def test_nothing_fits(deepspeed, batch_job):
    deepspeed(acts={"2/1x512": "oom"})
    (found,) = searched(batch_job).found.values()
    assert (found.fits, found.fails, found.best, found.gave_up) == (0, 1, None, None)


@pytest.mark.parametrize(
    ("statuses", "limit", "sizes"),
    [
        ({}, 20, [1, 2, 4, 8, 16]),
        ({"b16": "ok"}, 100, [32, 64]),
        ({"b8": "ok", "b16": "gpu_oom"}, None, [12, 14, 15]),
        ({"b8": "ok", "b12": "host_oom"}, None, [10, 11]),
        ({"b8": "ok", "b9": "gpu_oom"}, None, []),
    ],
)
def test_sizes_are_doubled_then_halved(batch_job, statuses, limit, sizes):
    assert list(next_sizes(known(batch_job, **statuses), limit)) == sizes


def test_a_length_need_not_be_known_to_the_token(job):
    found = known(job({"sweep.search": "seq_len"}), b6400="ok", b6464="gpu_oom")
    assert list(next_sizes(found, None)) == []


def test_a_size_is_a_job_of_its_own(batch_job):
    assert at_size(batch_job, 3).config.batch.micro == 3
    assert at_size(batch_job, 3).folder.path.parent == batch_job.folder.path.parent
    assert at_size(batch_job, 3).plan.run_id != at_size(batch_job, 3, CONFIRMATION).plan.run_id


@pytest.mark.parametrize(
    ("rate", "retries", "thrashes"), [(2000.0, 0, False), (1000.0, 0, True), (2000.0, 3, True), (1850.0, None, False)]
)
def test_what_fits_but_is_slower_or_retries_thrashes(deepspeed, batch_job, rate, retries, thrashes):
    deepspeed()
    (found,) = searched(batch_job, search_limit=2).found.values()
    first, second = found.tried[1], found.tried[2]
    found.tried[1] = replace(first, summary={**first.summary, "tokens_per_second": 2000.0})
    found.tried[2] = replace(
        second, summary={**second.summary, "tokens_per_second": rate, "num_alloc_retries": retries}
    )
    assert found.thrashes(2) is thrashes
    assert not found.thrashes(1)


def test_a_budget_in_dollars_ends_a_search(deepspeed, job):
    played = deepspeed(acts=TOO_LARGE)
    priced = job({"sweep.search": "batch", "hardware.usd_per_gpu_hour": 1e9})
    (found,) = searched(priced, max_usd=1.0).found.values()
    assert found.best is None and played.launches <= 1
