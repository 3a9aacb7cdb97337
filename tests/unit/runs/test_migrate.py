"""Records of an older memlab, or of a table that does not name everything."""

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


def test_the_price_of_a_node_in_older_records_is_shared_by_its_gpus(record):
    old = record().to_json()
    del old["config"]["hardware"]["usd_per_gpu_hour"]
    old["config"]["hardware"] |= {"gpus": 4, "usd_per_hour": 10.0}
    assert decode_record(old, "old").config.hardware.usd_per_gpu_hour == 2.5


def test_bad_values_are_left_for_the_check_to_refuse(record):
    """Whatever their types are."""
    written = record().to_json()
    for key in ("config", "choices", "ranks", "unknown_config", "steps"):
        for bad in (None, 7, "x", [7], [[]], {"a": 7}):
            migrate({**written, key: bad})
