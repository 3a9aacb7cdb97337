"""Single changes of a command: only those that it has words for."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from memlab.core.config import Config
from memlab.planner.command_changes import JSON_PLACE, possible_changes

TRAINER = {
    "training_arguments": {
        "values": {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "gradient_checkpointing": False,
            "output_dir": "out",
        }
    },
    "models": [{"trained": True, "gradient_checkpointing": False}],
}
"""What was found in a script that reads the words of TrainingArguments."""


def of_command(config: Config, unknown: tuple[str, ...]) -> Any:
    """A record of a command that uses ``config``."""
    return SimpleNamespace(config=config, unknown_config=unknown)


@pytest.fixture
def changes(config):
    def of(
        words: list[str], facts: dict, gpus: int = 1, unknown: tuple[str, ...] = (), **values
    ) -> dict[str, list[str]]:
        given = {"batch.micro": 4, "batch.accumulation": 2, **values}
        found = possible_changes(words, of_command(config(given), unknown), facts, gpus)
        return {change.told: list(change.words or ()) for change in found}

    return of


def test_words_of_training_arguments_are_changed_or_added(changes):
    found = changes(["python", "train.py", "--output_dir", "out", "--per_device_train_batch_size=4"], TRAINER)
    halved = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4"
    assert list(found) == ["PYTORCH_ALLOC_CONF=expandable_segments:True", "--gradient_checkpointing true", halved]
    assert found[halved][4:] == ["--per_device_train_batch_size=2", "--gradient_accumulation_steps", "4"]


def test_a_script_that_reads_none_of_these_words_gets_none(changes):
    assert list(changes(["python", "train.py"], TRAINER)) == ["PYTORCH_ALLOC_CONF=expandable_segments:True"]


def test_a_word_of_its_own_is_changed_where_it_is_the_batch_that_the_model_saw(changes):
    words = ["torchrun", "train.py", "--batch-size", "4", "--eval_batch", "4", "--accumulate", "2"]
    assert changes(words, {})["--batch_size 2 --accumulate 4"][2:] == [
        *("--batch-size", "2", "--eval_batch", "4", "--accumulate", "4")
    ]
    assert len(changes(words, {}, **{"batch.micro": 8})) == 1  # the word is something else
    assert len(changes(words, {}, unknown=("batch.micro",))) == 1


def test_a_flag_without_a_value_gets_one(changes):
    words = ["python", "train.py", "--no_gradient_checkpointing", "--output_dir", "out"]
    assert changes(words, TRAINER)["--gradient_checkpointing true"][-2:] == ["--gradient_checkpointing", "true"]
    flag = ["python", "train.py", "--gradient_checkpointing", "--output_dir", "out"]
    changed = changes(flag, TRAINER)["--gradient_checkpointing true"]
    assert changed == ["python", "train.py", "--gradient_checkpointing", "true", "--output_dir", "out"]


def test_an_argument_of_the_script_behind_a_flag_stays(changes):
    flag = ["python", "train.py", "--gradient_checkpointing", "data.json", "--output_dir", "out"]
    changed = changes(flag, TRAINER)["--gradient_checkpointing true"]
    assert changed == ["python", "train.py", "--gradient_checkpointing", "true", "data.json", "--output_dir", "out"]
    value = ["python", "train.py", "--gradient_checkpointing", "False", "data.json"]
    changed = changes(value, TRAINER)["--gradient_checkpointing true"]
    assert changed == ["python", "train.py", "--gradient_checkpointing", "true", "data.json"]


def test_an_option_is_added_before_the_scripts_own_separator(changes):
    words = ["torchrun", "--", "train.py", "--output_dir", "out", "--", "--gradient_checkpointing"]
    changed = changes(words, TRAINER)["--gradient_checkpointing true"]
    assert changed == [*words[:5], "--gradient_checkpointing", "true", *words[5:]]


def test_the_deepspeed_json_is_changed_in_a_copy(changes, config, tmp_path):
    path = tmp_path / "zero2.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}))
    words = ["deepspeed", "train.py", "--deepspeed", str(path)]
    record = of_command(config({}), ("batch",))
    found = possible_changes(words, record, {}, 1)[1:]
    assert [change.told for change in found] == [
        '"stage": 3 in zero2.json',
        '"offload_optimizer": {"device": "cpu"} in zero2.json',
    ]
    assert found[0].words == ("deepspeed", "train.py", "--deepspeed", JSON_PLACE)
    of_its_own = ["deepspeed", "train.py", "--deepspeed", "--deepspeed_config", str(path)]
    found = possible_changes(of_its_own, record, {}, 1)[1:]
    assert found[0].words == (*of_its_own[:4], JSON_PLACE)
    assert found[0].deepspeed == {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}


def test_more_gpus_where_the_ranks_share_something_and_the_node_has_them(changes):
    words, sharded = ["deepspeed", "--num_gpus", "2", "train.py"], {"deepspeed": [{"zero": {"stage": 2}}]}
    assert changes(words, sharded, gpus=4)["--num_gpus 4"] == ["deepspeed", "--num_gpus", "4", "train.py"]
    assert "--num_gpus 4" not in changes(words, sharded, gpus=2)
    assert "--num_gpus 4" not in changes(words, {"models": [{"wrappers": ["DistributedDataParallel"]}]}, gpus=4)
