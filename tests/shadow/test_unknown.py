"""What only feeds a figure beside memory never ends a prediction."""

from dataclasses import replace

import pytest

from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.prediction.prediction import predict

pytestmark = pytest.mark.shadow


def test_a_gpu_without_known_properties_is_said_in_the_record(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config, choices = compose_config(["mode=predict", "model=tiny", "hardware=h200_x1", "seq_len.tokens=32"])
    record = predict(make_plan(replace(config, hardware=replace(config.hardware, gpu="NVIDIA L40")), choices))
    assert record.status == "ok", record.reason
    assert "no properties of NVIDIA L40" in record.ranks[0]["unknown"]["gpu_model"]


def test_a_model_without_attention_is_predicted_without_model_flops(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = [
        "mode=predict",
        "model=tiny",
        "hardware=h200_x1",
        "zero_stage=zero2",
        "attention=eager",
        "seq_len.tokens=32",
    ]
    config, choices = compose_config(words)
    mamba = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 512}
    record = predict(make_plan(replace(config, model=replace(config.model, config=mamba)), choices))
    assert record.status == "ok", record.reason
    assert record.ranks[0]["model_flops_per_step"] is None
    assert "linear_attention" in record.ranks[0]["unknown"]["model_flops_per_step"]
    assert record.summary["step_seconds"] > 0 and "model_flops_utilization" not in record.summary


def test_a_step_is_counted_whole_or_not_at_all():
    from memlab.simulator.rank.counting import Counter
    from memlab.simulator.trace.trace_format import Trace

    trace = Trace(rank=0, world_size=1)
    counter = Counter(trace, lambda: "")
    counter.start()
    counter.phase(1)
    counter.operator("no operator", (), {}, None)
    counter.phase(2)
    counter.stop()
    assert counter.items == [] and "AttributeError" in trace.unknown["work"]
