"""Rows of a command's steps: read up to a line that was cut off, and combined over the ranks."""

from memlab.runs import step_rows
from memlab.runs.step_rows import caught_up, for_record, read_rows, rows_over_ranks


def test_the_line_of_a_killed_rank_is_left_out(tmp_path):
    file = tmp_path / "rank0.steps.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "tok')
    assert [row["step"] for row in read_rows(file)] == [1, 2]


def test_a_rank_without_rows_has_none(tmp_path):
    assert read_rows(tmp_path / "rank0.steps.jsonl") == []


def test_tokens_add_up_and_peaks_do_not():
    ranks = {
        0: [{"step": 1, "tokens": 10, "seconds": 0.5, "peak_allocated_bytes": 7, "phase": "forward"}],
        1: [{"step": 1, "tokens": 20, "seconds": 0.4, "peak_allocated_bytes": 9, "phase": "backward"}],
    }
    (row,) = rows_over_ranks(ranks)
    assert (row["tokens"], row["seconds"], row["peak_allocated_bytes"]) == (30, 0.5, 9)
    assert (row["rank"], row["phase"]) == (1, "backward")


def test_what_one_rank_does_not_know_is_not_known_of_all():
    (row,) = rows_over_ranks({0: [{"step": 1, "tokens": 10}], 1: [{"step": 1, "tokens": None}]})
    assert row["tokens"] is None


def test_steps_that_one_rank_did_not_reach_are_those_of_the_others():
    rows = rows_over_ranks({0: [{"step": 1, "tokens": 1}, {"step": 2, "tokens": 1}], 1: [{"step": 1, "tokens": 1}]})
    assert [row["tokens"] for row in rows] == [2, 1]


KILLED = {
    "host_peak_bytes": 7,
    "peak_allocated_bytes": 5,
    "attached": {
        **{"ended": "running", "steps": 1, "at": {"phase": "forward", "step": 2, "where": "a.py:3"}},
        "peak": {"step": 1, "bytes": 5},
    },
}
LATER = [
    {"step": 1, "seconds": 2.0, "peak_allocated_bytes": 5, "host_peak_bytes": 6},
    {"step": 2, "seconds": None, "peak_allocated_bytes": 9, "host_peak_bytes": 8, "phase": "backward", "tokens": 64},
    {"step": 3, "seconds": 0.5, "peak_allocated_bytes": 8, "host_peak_bytes": 6},
]


def test_a_rank_that_was_killed_is_completed_with_its_rows():
    rank = caught_up(KILLED, LATER)
    assert (rank["warmup_seconds"], rank["step_seconds"]) == ([2.0], [0.5])
    assert (rank["peak_allocated_bytes"], rank["host_peak_bytes"]) == (9, 8)
    assert (rank["attached"]["steps"], rank["attached"]["at"]["step"]) == (3, 4)
    peak = rank["attached"]["peak"]
    assert (peak["step"], peak["phase"], peak["bytes"], peak["tokens"]) == (2, "backward", 9, 64)


def test_a_rank_that_ended_by_itself_is_left_as_it_is():
    ended = {**KILLED, "attached": {**KILLED["attached"], "ended": "finished"}}
    assert caught_up(ended, LATER) is ended


def test_a_record_of_very_many_steps_holds_those_that_tell_something(monkeypatch):
    monkeypatch.setattr(step_rows, "MOST", 5)
    figures = dict.fromkeys(step_rows.HIGHEST)
    rows = [{**figures, "step": step, "peak_allocated_bytes": step} for step in range(1, 22)]
    rows[7]["peak_reserved_bytes"], rows[11]["alloc_retries"], rows[13]["alloc_retries"] = 99, 1, 2
    assert [row["step"] for row in for_record(rows)] == [1, 2, 6, 8, 11, 12, 14, 16, 21]
    assert for_record(rows[:5]) == rows[:5]
