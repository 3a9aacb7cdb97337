"""The CSV files of the public study become records."""

import pytest

from memlab.core.errors import MemlabError
from memlab.importers.gpjt_study import guess_configuration, read_points, to_records

MIB = 2**20

TWO_GPUS = """\
1, 0, 0, 900, 1000, 2.0
1, 950, 1100, 0, 0, 2.0
2, 1950, 2100, 0, 0, 1.0
2, 0, 0, 1900, 2000, 1.0
3, OOM
3, OOM
"""


def test_the_lines_of_the_ranks_become_one_record(csv_file):
    file = csv_file(TWO_GPUS)
    first, second, third = to_records(file, guess_configuration(file))
    assert [rank["peak_active_bytes"] for rank in first.ranks] == [950 * MIB, 900 * MIB]
    assert first.summary["peak_reserved_bytes"] == {"max": 1100 * MIB, "mean": 1050 * MIB, "min": 1000 * MIB}
    assert first.ranks[0]["peak_allocated_bytes"] is None  # the study measured active
    assert (second.status, third.status) == ("ok", "gpu_oom")
    assert second.summary["samples_per_second"] == pytest.approx(4.0)
    assert third.ranks == []
    assert first.config.hardware.gpus == 2
    assert first.config.seq_len.tokens == 2048


def test_the_rate_can_be_corrected(csv_file):
    file = csv_file(TWO_GPUS)
    record = next(iter(to_records(file, guess_configuration(file), correct_rate=True)))
    assert record.summary["iterations_per_second"] == pytest.approx(2.0 * 28 / 29)
    assert record.environment["rate_corrected"] is True


def test_one_gpu_has_one_pair(csv_file):
    file = csv_file("1, 10900, 14024, 7.2\n2, 10900, 14026, 9.2\n", "0.5b-seq-default.csv")
    records = list(to_records(file, guess_configuration(file)))
    assert [record.config.seq_len.tokens for record in records] == [1, 2]
    assert records[0].summary["parameters"] == 463_987_712


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("8b-zero2-offload-ckpt-seq-default.csv", ("zero2", "optimizer", "full", "default", "seq_len", 1, ())),
        ("8b-zero3-seq-expandable.csv", ("zero3", "none", "none", "expandable", "seq_len", 1, ())),
        ("8b-zero3-batch.csv", ("zero3", "none", "none", "expandable", "batch", 2048, ("allocator",))),
        ("0.5b-seq-default.csv", ("zero3", "none", "none", "default", "seq_len", 1, ("zero_stage",))),
    ],
)
def test_the_name_tells_how_it_was_measured(tmp_path, name, expected):
    study_file = guess_configuration(tmp_path / name)
    groups = ("zero_stage", "offload", "checkpointing", "allocator")
    assert (*(study_file.choices[g] for g in groups), study_file.axis, study_file.other, study_file.guessed) == expected


def test_what_is_given_goes_before_the_name(tmp_path):
    study_file = guess_configuration(
        tmp_path / "x.csv", zero_stage="zero1", allocator="default", axis="batch", other=512
    )
    assert (study_file.choices["zero_stage"], study_file.axis, study_file.other, study_file.guessed) == (
        "zero1",
        "batch",
        512,
        (),
    )


def test_a_line_that_repeats_another_stands_and_is_counted(csv_file):
    points, gpus = read_points(csv_file("5, 10, 20, 1.0\n5, 11, 21, 1.1\n"))
    assert gpus == 1
    assert points[0].ranks[0] == (11 * MIB, 21 * MIB, 1.1)
    assert points[0].repeated == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1, 2\n", r":1: 2 columns"),
        ("1, 2, 3, 4\nx, 1, 2, 3\n", r":2: invalid literal"),
        ("1, 0, 0, 1.0\n", r":1: no GPU has a value"),
        ("1, nan, 3, 1.0\n", r":1: a value is not a finite number"),
        ("1, 2, 3, 0\n", r":1: a value is not a finite number"),
        ("0, 2, 3, 1.0\n", r":1: the first column must be at least 1"),
        ("1, OOM\n", "no line holds memory values"),
        ("", "no line holds memory values"),
    ],
)
def test_a_line_at_fault_is_named(csv_file, text, message):
    with pytest.raises(MemlabError, match=message):
        read_points(csv_file(text))
