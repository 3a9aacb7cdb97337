"""The probability that something fits is honest about how little is known."""

import pytest

from memlab.prediction.memory.fit_probability import FEW, kind, probability, shipped_ratios, support
from tools.accuracy.errors import kinds

H200 = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "hardware.gpus": 1}


def test_nothing_is_certain():
    ratios = {"a": [1.0], "b": [0.98, 1.02]}
    assert probability(lambda ratio: True, ratios) == (0.75, 2)
    assert probability(lambda ratio: False, ratios) == (0.25, 2)


def test_a_configuration_counts_once_however_many_points_it_has():
    ratios = {"a": [1.1] * 50, "b": [1.0]}
    assert probability(lambda ratio: ratio < 1.05, ratios)[0] == 0.5


def test_a_point_just_below_the_limit_depends_on_the_errors():
    ratios = {"a": [0.97, 0.99], "b": [1.01, 1.03]}
    likely, _ = probability(lambda ratio: ratio <= 1.02, ratios)
    assert likely == (1 + 0.5 + 1) / 4


def test_it_asks_few_times():
    asked = []
    ratios = {str(number): [1 + number / 100] for number in range(64)}
    probability(lambda ratio: asked.append(ratio) or ratio < 1.3, ratios)
    assert len(asked) <= 7


def test_what_ships_is_of_published_records():
    ratios = shipped_ratios()
    assert len(ratios) >= 10
    assert all(0.8 < ratio < 1.2 for values in ratios.values() for ratio in values)


@pytest.mark.parametrize("ratio", [1.0, 0.9999999])
def test_ratios_are_rounded_away_from_what_is_safe(ratio):
    seen = []
    probability(lambda value: seen.append(value) or True, {"a": [ratio]})
    assert seen == [1.0]


def test_a_kind_is_what_decides_the_code_that_runs(config):
    plain = config(H200)
    assert kind(plain) == "one GPU"
    same = {"zero_stage.stage": 3, "checkpointing.enabled": True, "seq_len.tokens": 77}
    capped = {"allocator.conf": "per_process_memory_fraction:0.2"}
    assert kind(config({**H200, **same, **capped})) == "one GPU"
    changes = {"offload.optimizer": "cpu", "adapter.method": "lora", "allocator.conf": "expandable_segments:True"}
    told = "several GPUs, optimizer on cpu, adapter lora, allocator expandable"
    assert kind(config({**H200, **changes, "hardware.gpus": 4})) == told
    assert kind(config({**H200, "hardware.nodes": 2})) == "several nodes"


def test_configurations_of_a_kind_count_once_however_many_points_they_have(config):
    points = [config({**H200, "seq_len.tokens": tokens}) for tokens in (1, 2)]
    other = config({**H200, "zero_stage.stage": 3})
    assert kinds([*points, other]) == {"NVIDIA H200": {"one GPU": 2}}


def test_every_configuration_that_ships_is_of_a_kind(config):
    same_gpu, same_kind = support(config(H200))
    assert same_gpu == len(shipped_ratios())
    assert FEW <= same_kind < same_gpu


@pytest.mark.parametrize(
    ("change", "known"),
    [({"hardware.gpu": "H100 80GB HBM3"}, (0, 0)), ({"optimizer.name": "Lion"}, (len(shipped_ratios()), 0))],
)
def test_what_was_not_measured_has_no_support(config, change, known):
    assert support(config({**H200, **change})) == known
