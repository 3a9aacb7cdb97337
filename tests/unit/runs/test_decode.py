"""Records that cannot be read say why. Every record of results/ has the values of before records had types."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from memlab.core.errors import RecordError
from memlab.core.plan import config_hash
from memlab.core.record import SCHEMA_VERSION, Record
from memlab.files.json_file import write_json
from memlab.runs.folder import RunFolder

TESTS = Path(__file__).parents[2]

SWEEPS: dict[str, str] = json.loads((TESTS / "unit" / "golden" / "records_of_results.json").read_text())
"""Folder of results/ -> digest of its records, from before ``Record.config`` was a ``Config``."""

ADDED_SINCE = ("unknown_config", "command")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "schema version 2; this memlab reads version 1"),
        ({"schema_version": None}, "schema version null"),
        ({"status": "great"}, "damaged record: 'status' cannot be 'great'. Choose one of: failed, gpu_oom, host_oom"),
        ({"ranks": {}}, "damaged record: 'ranks' must be a list, not {}."),
        ({"ranks": [{"rank": 0}]}, "damaged record: 'ranks[0].device' is missing."),
        ({"summary": {"usd": -1}}, "damaged record: 'summary.usd' must be at least 0, not -1."),
        ({"summary": {"verdict": "x"}}, "damaged record: 'summary.verdict' cannot be 'x'. Choose one of: does_not_fit"),
        ({"command": {"exit_code": 0}}, "damaged record: 'command.words' is missing."),
        ({"summary": None}, "damaged record: 'summary' must be keys with values, not null."),
        ({"config": {"hardware": {"gpus": "x"}}}, "'config.hardware.gpus' must be a whole number, not 'x'."),
        ({"config": {}}, "damaged record: 'config.seq_len.tokens' is missing."),
        ({"summary": {"step_seconds": 1.0}}, "'summary.step_seconds_min' is missing next to 'step_seconds'."),
    ],
)
def test_a_record_that_is_none_is_refused(folder, record, change, words):
    write_json(folder.path / folder.RECORD, {**record().to_json(), **change})
    with pytest.raises(RecordError) as error:
        folder.read_record()
    assert words in str(error.value) and str(folder.path) in str(error.value)


def of_then(record: Record) -> dict[str, Any]:
    """The record as JSON, without what was added to records since the digests were taken."""
    values = {key: value for key, value in record.to_json().items() if key not in ADDED_SINCE}
    for place in (values["config"], values["choices"]):
        place.pop("training", None)
    for key in ("deepspeed", "training_args", "objective", "own"):
        values["config"].pop(key, None)
    values["config"]["sweep"].pop("guide", None)
    for key in ("profile", "snapshot_ranks"):
        values["config"]["measure"].pop(key)
    values["config"]["predict"].pop("outside", None)
    hardware = values["config"]["hardware"]
    price = hardware.pop("usd_per_gpu_hour")
    hardware["usd_per_hour"] = price and price * hardware["gpus"]
    for rank in values["ranks"]:
        del rank["attached"], rank["host_probe"]
    return values


@pytest.mark.parametrize("name", SWEEPS)
def test_every_record_of_results_is_what_it_was(name):
    digest = hashlib.sha256()
    for file in sorted((TESTS.parent / "results" / name).glob(f"*/{RunFolder.RECORD}")):
        text = json.dumps(of_then(RunFolder(file.parent).read_record()), sort_keys=True)
        digest.update(hashlib.sha256(text.encode()).hexdigest().encode())
    assert digest.hexdigest() == SWEEPS[name]


OLDEST = ("tinyllama_1b_1xH200", "qwen15_05b_1xH200")
"""Sweeps of before the hash of a configuration was what it is now."""


@pytest.mark.parametrize("name", [name for name in SWEEPS if name not in OLDEST])
def test_a_run_of_results_keeps_its_name_although_prices_are_by_gpu_now(name):
    records = [RunFolder(file.parent).read_record() for file in (TESTS.parent / "results" / name).glob("*/record.json")]
    assert records
    assert [record.run_id.rpartition("-")[2] for record in records] == [config_hash(each.config) for each in records]


@pytest.mark.parametrize("command", [{}, {"words": ["train"]}])
def test_a_run_of_memlabs_own_training_has_an_empty_command_and_null_in_its_file(record, folder, command):
    folder.finish(record(command=command))
    assert folder.read_record().command == command
    assert json.loads((folder.path / "record.json").read_text())["command"] == (command or None)
