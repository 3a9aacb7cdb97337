"""What cannot be predicted says so, and what to do instead."""

import pytest

from memlab.cli.compose import compose_config
from memlab.prediction.not_predicted import unpredictable
from memlab.system.machine import Machine


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("hardware=cpu", "CPU"),
        ("zero_stage=zero3 offload=all_nvme offload.nvme_path=/nvme", "NVMe"),
        ("optimizer.source=transformers optimizer.name=adamw_torch_8bit", "torchao"),
        ("zero_stage=zero3 zero_stage.zero_quantized_weights=true", "quantisation"),
        ("zero_stage=zero3 offload=optimizer offload.super_offload=true", "super_offload"),
        ("zero_stage=zero2 offload=param", "parameters"),
    ],
)
def test_reasons(words, why):
    config, _ = compose_config(["mode=predict", "hardware=h100_x8", *words.split()])
    reasons = unpredictable(config)
    assert any(why in reason and "instead:" in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    ("words", "extra"), [("adapter=lora", "adapters"), ("adapter=qlora", "adapters"), ("kernels=liger", "kernels")]
)
def test_a_missing_package_is_named_with_its_extra(words, extra, monkeypatch):
    config, _ = compose_config(["mode=predict", "hardware=h100_x8", *words.split()])
    assert unpredictable(config) == []
    monkeypatch.setattr(Machine, "has_package", staticmethod(lambda name: False))
    assert all(f"pip install 'memlab[{extra}]'" in reason for reason in unpredictable(config))
    assert unpredictable(config)


def test_what_can_be_predicted_has_none():
    assert unpredictable(compose_config(["mode=predict", "hardware=h100_x8", "zero_stage=zero3"])[0]) == []
