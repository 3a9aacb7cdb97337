"""The keys that memlab reads from the source of transformers and DeepSpeed are those of the imported classes."""

import dataclasses
import importlib
import json

import pytest

from memlab.files import library_keys

pytestmark = [pytest.mark.shadow, pytest.mark.long(15)]


def test_training_arguments():
    from transformers import TrainingArguments

    fields = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    assert set(library_keys.training_arguments()) == fields


def test_models_of_deepspeed(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    listed, keys = json.loads(library_keys.LISTED.read_text())["keys"], library_keys.deepspeed_json()
    models = {key: value for key, value in listed.items() if isinstance(value, str) and ":" in value}
    for key, place in models.items():
        file, _, name = place.partition(":")
        module = importlib.import_module("deepspeed." + file.removesuffix(".py").replace("/", "."))
        assert keys[key].keys() == names(getattr(module, name)), key
    zero, module = keys["zero_optimization"], importlib.import_module("deepspeed.runtime.zero.offload_config")
    assert zero["offload_param"].keys() == names(module.DeepSpeedZeroOffloadParamConfig)
    assert zero["offload_optimizer"].keys() == names(module.DeepSpeedZeroOffloadOptimizerConfig)


def names(model: type) -> set[str]:
    """The keys that a model of pydantic or a dataclass takes."""
    if dataclasses.is_dataclass(model):
        return {field.name for field in dataclasses.fields(model)}
    return {field.alias or name for name, field in model.model_fields.items()}
