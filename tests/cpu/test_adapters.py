"""Adapters measured on the CPU, two real ranks: what closed forms say of them, and the same bytes as their shadow."""

import pytest
from live_bytes import COMPARED, live_bytes, traced

from memlab.cli.compose import compose_config
from memlab.core.plan import Plan, make_plan
from memlab.launch.job_launch import Measuring
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job
from memlab.system.machine import Machine

pytestmark = pytest.mark.cpu

WEIGHTS = 893_568  # parameters of model=tiny
# Rank 16 on the inputs and outputs of q, k, v, o, gate, up and down, in two layers.
ADAPTERS = 2 * 16 * (256 + 192 + 192 + 256 + 480 + 480 + 480)
BUCKET = 100_000
# Frozen weights in bf16. Adapters beside weights from zero.Init stay in fp32, with master, Adam's states and gradients.
LEFT_BY_ZERO_3 = 2 * WEIGHTS / 2 + (4 + 12 + 2) / 2 * ADAPTERS + 2 * BUCKET

METHODS = {1: "qlora", 3: "lora"}
"""What is measured at each stage."""


def plan_of(stage: int) -> Plan:
    # A CPU keeps the random numbers of a dropout, a GPU a mask.
    words = ["model=tiny", "hardware=cpu", "measure=quick", "seq_len=s128", "adapter.dropout=0.0"]
    words += [f"adapter={METHODS[stage]}", f"zero_stage=zero{stage}"]
    words += [f"zero_stage.reduce_bucket_size={BUCKET}"]
    words += ["zero_stage.stage3_param_persistence_threshold=0"] if stage == 3 else []
    return make_plan(*compose_config(words))


@pytest.fixture(scope="module")
def shadows(tmp_path_factory):
    """Stage -> its trace."""
    traces = traced([plan_of(stage) for stage in METHODS], tmp_path_factory.mktemp("shadows"))
    return dict(zip(METHODS, traces, strict=True))


@pytest.mark.long(25)
@pytest.mark.parametrize("stage", METHODS)
def test_adapters_by_phase(shadows, stage, tmp_path):
    job = Job(plan_of(stage), RunFolder(tmp_path))
    measured = Measuring(Machine(), job.config.sweep).run_alone(job, print)
    assert measured.status == "ok", measured.reason
    rank = measured.ranks[0]
    assert (rank["parameters"], rank["trainable_parameters"]) == (WEIGHTS + ADAPTERS, ADAPTERS)
    if stage == 3:
        left = rank["phases"]["optimizer_step"]["end_allocated_bytes"]
        assert left == pytest.approx(LEFT_BY_ZERO_3, rel=2e-3)
    trace = shadows[stage]
    assert (trace.parameters, trace.trainable_parameters) == (WEIGHTS + ADAPTERS, ADAPTERS)
    predicted = live_bytes(trace)
    for name in COMPARED:
        assert predicted[name] == pytest.approx(rank["phases"][name]["peak_allocated_bytes"], rel=1e-3), name
