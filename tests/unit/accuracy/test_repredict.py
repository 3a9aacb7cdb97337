"""Which records shared a launch, and in which order."""

from dataclasses import replace

from memlab.core.config_values import from_dict, to_dict
from tools.accuracy.repredict import launches


def test_records_that_say_it(measured):
    found = launches(
        [
            measured(30, "shared", before=[[1, 10], [1, 20]]),
            measured(10, "shared", before=[]),
            measured(20, "shared", before=[[1, 10]]),
        ]
    )
    assert [launch.shapes for launch in found] == [[(1, 10), (1, 20), (1, 30)]]
    assert sorted(found[0].records) == [0, 1, 2]


def test_a_point_without_a_record_is_run_again_all_the_same(measured):
    (launch,) = launches([measured(30, "shared", before=[[1, 10], [1, 20]])])
    assert launch.shapes == [(1, 10), (1, 20), (1, 30)]
    assert list(launch.records) == [2]
    assert [plan.config.seq_len.tokens for plan in launch.plans()] == [10, 20, 30]


def test_older_records_by_size_and_start_up_time(measured):
    first = {"timing": {"launch_s": 9.0}}
    records = [measured(tokens, "shared", **(first if tokens in (10, 40) else {})) for tokens in (30, 10, 20, 50, 40)]
    found = launches(records)
    assert sorted(launch.shapes for launch in found) == [[(1, 10), (1, 20), (1, 30)], [(1, 40), (1, 50)]]


def test_fresh_records_and_other_engines_are_launches_of_their_own(measured):
    found = launches([measured(10, "fresh"), measured(20, "fresh"), measured(20, "fresh", stage=3)])
    assert sorted(launch.shapes for launch in found) == [[(1, 10)], [(1, 20)], [(1, 20)]]


def test_only_what_says_something_of_gpu_memory_is_judged(measured):
    assert launches([measured(10, "fresh", status="failed"), measured(10, "fresh", device="cpu")]) == []


def test_predictions_are_not_judged(measured):
    assert launches([replace(measured(10, "fresh"), source="predicted")]) == []


def test_configurations_survive(measured):
    record = measured(10, "fresh")
    assert from_dict(to_dict(record.config)) == record.config
