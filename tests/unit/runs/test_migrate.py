"""Records of an older memlab, or of a table that does not name everything."""

from dataclasses import replace

import pytest

from memlab.core.config import Batch
from memlab.core.record import Record
from memlab.runs.decode import decode_record, migrate


def test_groups_added_since_are_none_in_older_records(config, record):
    old = record(choices={"model": "tiny"}).to_json()
    del old["config"]["adapter"], old["config"]["kernels"]
    read = decode_record(old, "old")
    assert read.config == config()
    assert read.choices == {"model": "tiny", "adapter": "none", "kernels": "none"}


def test_a_model_that_an_imported_table_does_not_name_is_not_known(config):
    imported = Record(run_id="x", source="measured", status="ok", config=config(), choices={}, fingerprint="f")
    imported.config.model.path = "???"
    assert decode_record(imported.to_json(), "imported").config.model.path == "???"


def test_figures_added_since_are_not_known_of_older_records(config):
    old = {"rank": 0, "device": "cuda:0", "device_name": "GPU", "memory_source": "cuda_caching_allocator"}
    record = Record(
        run_id="x", source="measured", status="ok", config=config(), choices={}, fingerprint="f", ranks=[old]
    )
    (rank,) = decode_record(record.to_json(), "old").ranks
    assert rank["device"] == "cuda:0" and rank["breakdown"] is None and rank["losses"] == []


ROW = {"samples": 4, "tokens": 4096, "longest_sample": 900, "micro_batches": 1}


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({}, (4, 1024)),
        ({"tokens": None, "longest_sample": None}, (4, None)),
        ({"micro_batches": 2}, (None, None)),  # one micro batch may hold three samples
        ({"micro_batches": 2, "longest_sample": 1024}, (None, 1024)),
        ({"samples": None}, (None, None)),
    ],
)
def test_batch_and_length_of_an_older_command_are_those_that_its_steps_show(record, rank, changes, shape):
    old = record(unknown_config=["batch.micro", "seq_len"], ranks=[rank(0)], steps={"rows": [ROW | changes]})
    read = decode_record(old.to_json(), "old")
    micro = None if "batch.micro" in read.unknown_config else read.config.batch.micro
    tokens = None if "seq_len" in read.unknown_config else read.config.seq_len.tokens
    assert (micro, tokens) == shape


def test_packed_samples_of_an_older_command_are_one_whatever_its_engine_was_told(record, rank):
    row = ROW | {"samples": 1, "tokens": 8172, "longest_sample": 8172}
    old = record(unknown_config=["seq_len"], ranks=[rank(0)], steps={"rows": [row]})
    config = decode_record(replace(old, config=replace(old.config, batch=Batch(micro=4))).to_json(), "old").config
    assert (config.batch.micro, config.seq_len.tokens) == (1, 8172)


def test_bad_values_are_left_for_the_check_to_refuse(record):
    """Whatever their types are."""
    written = record().to_json()
    for key in ("config", "choices", "ranks", "unknown_config", "steps"):
        for bad in (None, 7, "x", [7], [[]], {"a": 7}):
            migrate({**written, key: bad})
