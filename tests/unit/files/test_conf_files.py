"""Option files read without Hydra give what Hydra gives, and the words made from a configuration compose it again."""

import shlex

import pytest

from memlab.cli.compose import compose_config
from memlab.core.config_values import to_dict
from memlab.core.errors import ConfigError
from memlab.files.conf_files import config_of, gpu_here, known_gpu, option_values, overrides_of, parse_yaml

CHOICES = {
    "model": "llama3_8b",
    "zero_stage": "zero3",
    "offload": "optimizer",
    "allocator": "expandable",
    "checkpointing": "full",
    "precision": "fp16",
    "hardware": "a100_80g_x8",
    "measure": "thorough",
}

VALUES = {
    "seq_len.tokens": 731,
    "optimizer.lr": 8e-05,
    "optimizer.betas": [0.8, 0.95],
    "allocator.conf": "max_split_size_mb:64,roundup_power2_divisions:[256:1,>:4]",
}


def test_it_is_the_configuration_that_hydra_composes():
    words = [f"{group}={option}" for group, option in CHOICES.items()]
    composed, _ = compose_config([*words, "seq_len.tokens=731"])
    assert config_of(CHOICES, {"seq_len.tokens": 731}) == composed


def test_the_words_compose_the_configuration_again():
    config = config_of(CHOICES, VALUES)
    words = shlex.split(" ".join(overrides_of(CHOICES, to_dict(config))))
    assert compose_config(words)[0] == config


def test_only_what_the_options_do_not_set_is_named():
    words = overrides_of(CHOICES, to_dict(config_of(CHOICES, {"seq_len.tokens": 731})))
    assert words == [f"{group}={option}" for group, option in CHOICES.items()] + ["seq_len.tokens=731"]


def test_of_the_default_options_only_the_model_is_named():
    config, choices = compose_config(["hardware=h100_x1"])
    assert overrides_of(choices, to_dict(config)) == ["model=tiny", "hardware=h100_x1"]


def test_numbers_are_numbers():
    assert parse_yaml("a: 1e-5\nb: 1.0e-5\nc: x1e-5") == {"a": 1e-5, "b": 1e-5, "c": "x1e-5"}


@pytest.mark.parametrize(
    ("group", "option", "hint"), [("offload", "optimiser", "'optimizer'"), ("modell", "tiny", "'model'")]
)
def test_what_does_not_ship_is_refused(group, option, hint):
    with pytest.raises(ConfigError, match=f"Did you mean {hint}"):
        config_of({group: option}, {})


def test_interpolations_are_left_to_hydra():
    assert option_values("hardware", "auto") == {}


def test_a_value_with_a_space_is_quoted_once_for_the_shell_and_once_for_hydra():
    words = overrides_of(CHOICES, to_dict(config_of(CHOICES, {"hardware.gpu": "NVIDIA H200"})))
    assert """hardware.gpu='"NVIDIA H200"'""" in words


def test_words_of_a_record_name_keys_of_ones_own(composed):
    words = ["hardware=cpu", "model=tiny", "+schedule.lr=0.1", "+note=a"]
    config, choices = compose_config(words)
    assert sorted(overrides_of(choices, to_dict(config))) == sorted(words)


@pytest.mark.parametrize(
    ("name", "gib", "gpu", "memory_gib"),
    [
        ("NVIDIA H100 80GB HBM3", 79.65, "H100 80GB HBM3", 79.19),  # NVML's total
        ("NVIDIA H100 80GB HBM3", 79.18, "H100 80GB HBM3", 79.19),  # torch's, with another driver
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.75, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.75),
        ("NVIDIA H200", 70.0, "NVIDIA H200", 70.0),
        ("NVIDIA Riva 128", 0.004, "NVIDIA Riva 128", 0.004),
    ],
)
def test_a_gpu_of_a_machine_has_the_values_that_its_prediction_has(name, gib, gpu, memory_gib):
    found = gpu_here(name, gib)
    assert (found["gpu"], found["memory_gib"]) == (gpu, memory_gib)
    if (gpu, memory_gib) != (name, gib):
        assert found == known_gpu(name)
