"""The check of completeness: every rank, the planned steps, a finite loss."""

from folders import make_config, make_ranks, make_record

from memlab.analyse.run_view import shortcomings


def record_with(**changes):
    record = make_record()
    for rank in record.ranks:
        rank.update(changes)
    return record


def test_a_complete_run():
    assert shortcomings(make_record()) == []


def test_a_missing_rank():
    record = make_record()
    del record.ranks[0]
    assert shortcomings(record) == ["no values of rank 0 (of 2)"]


def test_a_rank_twice():
    record = make_record()
    record.ranks.append(record.ranks[1])
    assert shortcomings(record) == ["rank 1 is there more than once"]


def test_too_few_steps():
    record = make_record()
    record.ranks[1]["step_seconds"] = [0.5]
    assert shortcomings(record) == ["4 steps were planned, measured were rank 1: 1"]


def test_a_run_whose_steps_were_all_recorded_says_why_it_has_no_times():
    record = record_with(step_seconds=[], attached={"steps": 4, "recorded_steps": 3, "profiled_steps": [4]})
    assert shortcomings(record) == ["no step has a time, because each was recorded (--explain) or profiled"]
    record = record_with(step_seconds=[], attached={"steps": 5, "recorded_steps": 3, "profiled_steps": [4]})
    assert "4 steps were planned" in shortcomings(record)[0]


def test_a_loss_that_is_not_finite():
    assert "the loss of step 1 is nan" in shortcomings(record_with(losses=[1.0, float("nan"), float("nan")]))[0]
    assert "the loss of step 0 is None" in shortcomings(record_with(losses=[None]))[0]


def test_a_run_that_is_not_ok_is_not_held_to_it():
    assert shortcomings(make_record(status="gpu_oom")) == []


def test_a_prediction_needs_no_steps():
    record = make_record()
    record.source = "predicted"
    record.ranks = [make_ranks(make_config())[0].to_json() | {"step_seconds": []}]
    assert shortcomings(record) == []
