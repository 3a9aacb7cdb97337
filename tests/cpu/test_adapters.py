"""Low-rank adapters measured on two CPU ranks: what is trained, what ZeRO keeps of it, and the same bytes predicted."""

import pytest
from test_predicted_against_measured import COMPARED, live_bytes, on_a_gpu

from memlab.compose import compose_config
from memlab.launch.job import Job
from memlab.launch.run import run_one
from memlab.plan import make_plan
from memlab.predict.shadow.request import Point, traces
from memlab.record import RunFolder

pytestmark = pytest.mark.cpu

WEIGHTS = 893_568  # of model=tiny
# Rank 16 on the inputs and outputs of q, k, v, o, gate, up and down, in two layers.
ADAPTERS = 2 * 16 * (256 + 192 + 192 + 256 + 480 + 480 + 480)
BUCKET = 100_000
LEFT_BY_ZERO = {
    # Frozen weights in bf16; adapters in bf16 with the fp32 master and Adam's two states.
    0: 2 * WEIGHTS + (2 + 12) * ADAPTERS,
    1: 2 * WEIGHTS + (2 + 12 / 2) * ADAPTERS,
    2: 2 * WEIGHTS + (2 + 12 / 2) * ADAPTERS,
    # All of it is partitioned. Beside weights from zero.Init adapters stay in fp32; gradients and a bucket stay, too.
    3: 2 * WEIGHTS / 2 + (4 + 12 + 2) / 2 * ADAPTERS + 2 * BUCKET,
}


@pytest.mark.parametrize(
    ("stage", "method"), [(0, "lora"), (1, "lora"), (2, "lora"), (3, "lora"), pytest.param(2, "qlora", id="qlora")]
)
def test_measured_predicted_and_by_rule(stage, method, tmp_path):
    # A CPU keeps the random numbers of a dropout, a GPU a mask.
    words = ["model=tiny", "hardware=cpu", "measure=quick", "seq_len=s128", f"adapter={method}", "adapter.dropout=0.0"]
    words += [f"zero_stage=zero{stage}", *([f"zero_stage.reduce_bucket_size={BUCKET}"] if stage else [])]
    words += ["zero_stage.stage3_param_persistence_threshold=0"] if stage == 3 else []
    config, choices = compose_config(words)
    plan = make_plan(config, choices)
    measured = run_one(Job(plan, RunFolder(tmp_path)))
    assert measured.status == "ok", measured.reason
    rank = measured.ranks[0]
    assert (rank["parameters"], rank["trainable_parameters"]) == (WEIGHTS + ADAPTERS, ADAPTERS)
    if method == "lora":
        left = rank["phases"]["optimizer_step"]["end_allocated_bytes"]
        assert left == pytest.approx(LEFT_BY_ZERO[stage], rel=2e-3)
    point = Point(0, config.batch.micro, config.seq_len.tokens)
    trace = traces(on_a_gpu(plan), [point], tmp_path)[point]
    assert (trace.parameters, trace.trainable_parameters) == (WEIGHTS + ADAPTERS, ADAPTERS)
    predicted = live_bytes(trace)
    for name in COMPARED:
        assert predicted[name] == pytest.approx(rank["phases"][name]["peak_allocated_bytes"], rel=1e-3), name
