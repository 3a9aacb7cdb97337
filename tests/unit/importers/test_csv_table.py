"""Any table with a head becomes records: a line for each point, or for each rank."""

import pytest

from memlab.core.errors import MemlabError
from memlab.importers.csv_table import csv_records, parse_map

TABLE = "length,bs,mem,speed,outcome\n512,1,10.5,0.5,\n1024,1,20,1.0,ok\n4096,1,,,OOM\n"

MAP = ("seq_len.tokens=length", "batch.micro=bs", "peak_reserved_bytes=mem:GiB", "step_seconds=speed", "status=outcome")

FIXED = {"model": "llama3_8b", "zero_stage": "zero3", "allocator": "default"}


def test_a_table_with_a_line_for_each_point(csv_file):
    records = list(csv_records(csv_file(TABLE), parse_map(MAP), FIXED))
    assert [record.status for record in records] == ["ok", "ok", "gpu_oom"]
    assert records[0].summary["peak_reserved_bytes"]["max"] == 10.5 * 2**30
    assert records[1].summary["tokens_per_second"] == 1024
    assert records[1].choices["zero_stage"] == "zero3"
    assert records[1].config.zero_stage.stage == 3


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
        (["peak_reserved_bytes"], "write KEY=COLUMN"),
        (["seq_len.tokens=lenght"], "Did you mean 'length'"),
        (["seq_len.tokens=mem"], ":2: 'seq_len.tokens' must be a whole number"),
        (["status=mem"], ":2: no status '10.5'"),
    ],
)
def test_a_map_or_cell_that_cannot_be(csv_file, words, message):
    with pytest.raises(MemlabError, match=message):
        list(csv_records(csv_file(TABLE), parse_map(words), FIXED))


def test_points_keep_their_own_isolation(csv_file):
    """A point is shared if any of its ranks shared its launch, in whatever order the lines come."""
    text = "length,gpu,mem,launch\n512,0,1,shared\n512,1,1,fresh\n1024,0,2,fresh\n1024,1,2,fresh\n"
    columns = parse_map(["seq_len.tokens=length", "rank=gpu", "peak_reserved_bytes=mem:GiB", "isolation=launch"])
    records = csv_records(csv_file(text), columns, {**FIXED, "hardware.gpus": 2})
    assert [record.isolation for record in records] == ["shared", "fresh"]
