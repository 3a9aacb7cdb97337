"""Other people's tables become records: the study's own CSV files and any table with a header."""

import pytest

from memlab.analyse.collect import collect
from memlab.analyse.diff import compare
from memlab.analyse.import_csv import csv_records, parse_map
from memlab.analyse.import_gpjt import guess_series, read_points, to_records
from memlab.analyse.imported import write_records
from memlab.core.config import from_dict
from memlab.core.errors import MemlabError

MIB = 2**20

TWO_GPUS = """\
1, 0, 0, 900, 1000, 2.0
1, 950, 1100, 0, 0, 2.0
2, 1950, 2100, 0, 0, 1.0
2, 0, 0, 1900, 2000, 1.0
3, OOM
3, OOM
"""


@pytest.fixture
def csv_file(tmp_path):
    def write(text, name="8b-zero3-ckpt-batch-default.csv"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


# --- the study's files ------------------------------------------------------------------------------------------------


def test_the_lines_of_the_ranks_become_one_record(csv_file):
    file = csv_file(TWO_GPUS)
    first, second, third = to_records(file, guess_series(file))
    assert [rank["peak_active_bytes"] for rank in first.ranks] == [950 * MIB, 900 * MIB]
    assert first.summary["peak_reserved_bytes"] == {"max": 1100 * MIB, "mean": 1050 * MIB, "min": 1000 * MIB}
    assert first.ranks[0]["peak_allocated_bytes"] is None  # the study measured active
    assert (second.status, third.status) == ("ok", "gpu_oom")
    assert second.summary["samples_per_second"] == pytest.approx(4.0)
    assert third.ranks == []
    assert from_dict(first.config).hardware.gpus == 2
    assert first.config["seq_len"]["tokens"] == 2048


def test_the_rate_can_be_corrected(csv_file):
    file = csv_file(TWO_GPUS)
    record = next(iter(to_records(file, guess_series(file), correct_rate=True)))
    assert record.summary["iterations_per_second"] == pytest.approx(2.0 * 28 / 29)
    assert record.environment["rate_corrected"] is True


def test_one_gpu_has_one_pair(csv_file):
    file = csv_file("1, 10900, 14024, 7.2\n2, 10900, 14026, 9.2\n", "0.5b-seq-default.csv")
    records = list(to_records(file, guess_series(file)))
    assert [record.config["seq_len"]["tokens"] for record in records] == [1, 2]
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
    series = guess_series(tmp_path / name)
    groups = ("zero_stage", "offload", "checkpointing", "allocator")
    assert (*(series.choices[g] for g in groups), series.axis, series.other, series.guessed) == expected


def test_what_is_given_goes_before_the_name(tmp_path):
    series = guess_series(tmp_path / "x.csv", zero_stage="zero1", allocator="default", axis="batch", other=512)
    assert (series.choices["zero_stage"], series.axis, series.other, series.guessed) == ("zero1", "batch", 512, ())


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
        ("1, 0, 0, 1.0\n", r":1: no GPU has a figure"),
        ("1, nan, 3, 1.0\n", r":1: a figure is not a finite number"),
        ("1, 2, 3, 0\n", r":1: a figure is not a finite number"),
        ("0, 2, 3, 1.0\n", r":1: the first column must be at least 1"),
        ("1, OOM\n", "no line with memory figures"),
        ("", "no line with memory figures"),
    ],
)
def test_a_line_at_fault_is_named(csv_file, text, message):
    with pytest.raises(MemlabError, match=message):
        read_points(csv_file(text))


def test_imported_records_are_run_folders_like_any_other(csv_file, tmp_path):
    file = csv_file(TWO_GPUS)
    write_records(to_records(file, guess_series(file)), tmp_path / "out")
    write_records(to_records(file, guess_series(file)), tmp_path / "out")  # again is no error
    collection = collect([tmp_path / "out"])
    assert not collection.skipped
    assert [run.incomplete for run in collection.runs] == [[], [], []]
    assert collection.runs[0].run_id == collection.runs[0].path.split("/")[-1]
    assert [change.key for change in compare(collection.runs[:2]).values] == ["batch.micro"]


def test_a_run_from_elsewhere_is_not_replaced(csv_file, tmp_path):
    file = csv_file(TWO_GPUS)
    series = guess_series(file)
    write_records(to_records(file, series), tmp_path / "out")
    with pytest.raises(MemlabError, match="from another source"):
        write_records(to_records(csv_file(TWO_GPUS, "copy.csv"), series), tmp_path / "out")


# --- any table --------------------------------------------------------------------------------------------------------

TABLE = "length,bs,mem,speed,outcome\n512,1,10.5,0.5,\n1024,1,20,1.0,ok\n4096,1,,,OOM\n"

MAP = ("seq_len.tokens=length", "batch.micro=bs", "peak_reserved_bytes=mem:GiB", "step_seconds=speed", "status=outcome")

FIXED = {"model": "llama3_8b", "zero_stage": "zero3", "allocator": "default"}


def test_a_table_with_a_line_for_each_point(csv_file):
    records = list(csv_records(csv_file(TABLE), parse_map(MAP), FIXED))
    assert [record.status for record in records] == ["ok", "ok", "gpu_oom"]
    assert records[0].summary["peak_reserved_bytes"]["max"] == 10.5 * 2**30
    assert records[1].summary["tokens_per_second"] == 1024
    assert records[1].choices["zero_stage"] == "zero3"
    assert records[1].config["zero_stage"]["stage"] == 3


def test_a_table_with_a_line_for_each_rank(csv_file):
    file = csv_file("gpu,mem,zero\n0,1,zero3\n1,2,zero3\n")
    columns = parse_map(["rank=gpu", "peak_allocated_bytes=mem:MB", "zero_stage=zero"])
    (record,) = csv_records(file, columns, {"model": "llama3_8b", "allocator": "default", "hardware.gpus": 2})
    assert record.summary["peak_allocated_bytes"] == {"max": 2_000_000, "mean": 1_500_000, "min": 1_000_000}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["peak_reserved=mem"], "Did you mean 'peak_reserved_bytes'"),
        (["peak_reserved_bytes=mem:GIB"], "no unit 'GIB'"),
        (["peak_reserved_bytes"], "expected KEY=COLUMN"),
        (["seq_len.tokens=lenght"], "Did you mean 'length'"),
        (["seq_len.tokens=mem"], ":2: 'seq_len.tokens' must be a whole number"),
        (["status=mem"], ":2: no status '10.5'"),
    ],
)
def test_a_map_or_cell_that_cannot_be(csv_file, words, message):
    with pytest.raises(MemlabError, match=message):
        list(csv_records(csv_file(TABLE), parse_map(words), FIXED))
