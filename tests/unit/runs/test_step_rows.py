"""Rows of a command's steps: read up to a line that was cut off, and combined over the ranks."""

from memlab.runs.step_rows import over_ranks, read_rows


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
    (row,) = over_ranks(ranks)
    assert (row["tokens"], row["seconds"], row["peak_allocated_bytes"]) == (30, 0.5, 9)
    assert (row["rank"], row["phase"]) == (1, "backward")


def test_what_one_rank_does_not_know_is_not_known_of_all():
    (row,) = over_ranks({0: [{"step": 1, "tokens": 10}], 1: [{"step": 1, "tokens": None}]})
    assert row["tokens"] is None


def test_steps_that_one_rank_did_not_reach_are_those_of_the_others():
    rows = over_ranks({0: [{"step": 1, "tokens": 1}, {"step": 2, "tokens": 1}], 1: [{"step": 1, "tokens": 1}]})
    assert [row["tokens"] for row in rows] == [2, 1]
