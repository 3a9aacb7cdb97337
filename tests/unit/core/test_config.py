"""The schema: what it refuses, in words that help, and that nothing is lost on the way through it."""

import dataclasses
import importlib.util
import re
from pathlib import Path

import pytest

from memlab.core.config import FREE_DICTS, GROUPS, Config
from memlab.core.config_values import flat, from_dict, to_dict
from memlab.core.errors import ConfigError
from memlab.core.optimizers import NAMES


def leaves(schema: type = Config, path: str = "") -> list[str]:
    """All keys of the schema, dotted."""
    found = []
    for field in dataclasses.fields(schema):
        nested = dataclasses.is_dataclass(field.type)
        found += leaves(field.type, f"{path}{field.name}.") if nested else [path + field.name]
    return found


def test_the_keys_are_frozen(golden):
    golden("config_keys.json", sorted(leaves()), "the configuration's keys changed. Users have typed them: say so.")


def test_to_dict_and_back(config):
    full = config({"model.overrides": {"num_hidden_layers": 1}, "zero_stage.stage": 3, "name": "mine"})
    assert from_dict(to_dict(full)) == full
    assert to_dict(from_dict(to_dict(full))) == to_dict(full)


def test_to_dict_shares_nothing_with_its_config(config):
    original = config()
    to_dict(original)["model"]["config"]["hidden_size"] = 1
    assert original.model.config["hidden_size"] != 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("batch.micro", "two", "'batch.micro' must be a whole number, not 'two'."),
        ("batch.micro", 1.5, "'batch.micro' must be a whole number, not 1.5."),
        ("batch.micro", True, "'batch.micro' must be a whole number, not True."),
        ("batch.micro", None, "'batch.micro' must be a whole number, not null."),
        ("checkpointing.enabled", 1, "'checkpointing.enabled' must be true or false, not 1."),
        ("zero_stage.overlap_comm", "yes", "'zero_stage.overlap_comm' must be true or false, or null, not 'yes'."),
        ("hardware.memory_gib", "80", "'hardware.memory_gib' must be a number, or null, not '80'."),
        ("model.overrides", [1], "'model.overrides' must be keys with values, not [1]."),
        ("optimizer.betas", [True, 0.9], "'optimizer.betas[0]' must be a number, not True."),
        ("optimizer.betas", [0.9], "'optimizer.betas' must be a list of 2 numbers, not [0.9]."),
        ("optimizer.lr", float("nan"), "'optimizer.lr' must be a finite number, not nan."),
        ("optimizer.lr", 10**400, "'optimizer.lr' must be a finite number, not inf."),
        ("optimizer.lr", -1, "'optimizer.lr' must be at least 0.0, not -1.0."),
        ("offload.ratio", 1.5, "'offload.ratio' must be at most 1.0, not 1.5."),
        ("optimizer.betas", [0.9, 1.0], "'optimizer.betas' must be less than 1.0, not 1.0."),
        ("hardware.memory_gib", 0, "'hardware.memory_gib' must be at least 0.001, not 0.0."),
        ("hardware.gpus", 10**9, "'hardware.gpus' must be at most 1024, not 1000000000."),
        ("sweep.max_usd", -1, "'sweep.max_usd' must be at least 0.0, not -1.0."),
        ("seed", -1, "'seed' must be at least 0, not -1."),
        ("batch.micro", 0, "'batch.micro' must be at least 1, not 0."),
        ("measure.warmup", 1, "'measure.warmup' must be at least 2, not 1."),
        ("zero_stage.stage", 4, "'zero_stage.stage' cannot be 4. Choose one of: 0, 1, 2, 3."),
        ("precision.dtype", "bf17", "'precision.dtype' cannot be 'bf17'. Did you mean 'bf16'?"),
        ("attention.implementation", "spda", "'attention.implementation' cannot be 'spda'. Did you mean 'sdpa'?"),
        ("precision.grad_accum_dtype", "f32", "'precision.grad_accum_dtype' cannot be 'f32'. Did you mean 'fp32'?"),
        ("model.path", "???", "'model.path' has no value: add model.path=<value> to the command line."),
        ("model", "tiny", "'model' is a config group with keys of its own, not the value 'tiny'."),
        ("batch.mikro", 2, "Unknown key 'batch.mikro'. Did you mean 'batch.micro'?"),
        ("bach", {}, "Unknown key 'bach'. Did you mean 'batch'?"),
    ],
)
def test_what_the_schema_refuses(config, key, value, message):
    with pytest.raises(ConfigError) as error:
        config({key: value})
    assert str(error.value) == message


def test_every_number_has_a_range():
    numbers = (int, float, int | None, float | None, list[float])
    groups = [Config, *(field.type for field in dataclasses.fields(Config) if dataclasses.is_dataclass(field.type))]
    fields = [(group.__name__, field) for group in groups for field in dataclasses.fields(group)]
    without = [
        f"{group}.{field.name}"
        for group, field in fields
        if field.type in numbers and not {"range", "choices"} & field.metadata.keys()
    ]
    assert without == []


@pytest.mark.parametrize(
    ("source", "name", "hint"),
    [
        ("deepspeed", "AdmW", "DeepSpeed's own optimizers: 'AdmW'. Did you mean 'adamw'?"),
        ("deepspeed", "adamw_torch", "DeepSpeed's own optimizers: 'adamw_torch'. Did you mean 'adamw'?"),
        ("transformers", "adamw_trch", "transformers' optimizers: 'adamw_trch'. Did you mean 'adamw_torch'?"),
        ("transformers", "AdamW_torch", "transformers' optimizers: 'AdamW_torch'. Did you mean 'adamw_torch'?"),
    ],
)
def test_a_misspelt_optimizer_is_refused_with_the_nearest(config, source, name, hint):
    with pytest.raises(ConfigError) as error:
        config({"optimizer.source": source, "optimizer.name": name})
    assert str(error.value) == f"'optimizer.name' is none of {hint}"


@pytest.mark.parametrize("name", ["AdamW", "adamw", "Lion", "Muon"])
def test_deepspeeds_names_are_taken_in_any_case(config, name):
    assert config({"optimizer.name": name}).optimizer.name == name


@pytest.mark.parametrize(
    ("source", "file", "pattern"),
    [
        ("deepspeed", "deepspeed/runtime/config.py", r"^[A-Z]+_OPTIMIZER = '(\w+)'"),
        (
            "transformers",
            "transformers/training_args.py",
            r'^    [A-Z0-9_]+ = "(\w+)"(?=[^\0]*class TrainingArguments:)',
        ),
    ],
)
def test_the_optimizers_are_those_of_the_installed_packages(source, file, pattern):
    """Read, not imported: an import costs seconds."""
    package, _, rest = file.partition("/")
    path = Path(importlib.util.find_spec(package).origin).parent / rest
    assert set(re.findall(pattern, path.read_text(), re.MULTILINE)) == set(NAMES[source])


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "..", ".", "a/../../x", "a//b", "x/", ""])
def test_a_name_cannot_lead_out_of_the_outputs(config, name):
    with pytest.raises(ConfigError, match="names a folder under outputs/"):
        config({"name": name})


@pytest.mark.parametrize("name", ["mine", "study/a", "a..b", "...", None])
def test_a_name_is_a_folder(config, name):
    assert config({"name": name}).name == name


def test_a_whole_number_where_a_number_is_wanted_is_the_same_number(config):
    assert config({"optimizer.lr": 1}) == config({"optimizer.lr": 1.0})
    assert isinstance(config({"hardware.memory_gib": 80}).hardware.memory_gib, float)


def test_keys_of_other_schemas_are_passed_on(config):
    changes = {key: {"whatever": [1, "two", None]} for key in FREE_DICTS}
    values = flat(to_dict(config(changes)))
    for key in FREE_DICTS:
        assert values.get(key, values.get(f"{key}.whatever")) in ({"whatever": [1, "two", None]}, [1, "two", None])


def test_the_groups_of_the_mission_are_there():
    assert {"model", "zero_stage", "offload", "allocator", "checkpointing", "seq_len", "batch"} < set(GROUPS)


def test_a_configuration_written_before_a_key_was_added_is_completed(config):
    values = to_dict(config({"measure.steps": 7}))
    del values["measure"]["protocol"], values["batch"]["accumulation"], values["kernels"], values["force"]
    assert from_dict(values) == config({"measure.steps": 7})
