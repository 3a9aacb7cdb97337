"""A run measured on the CPU, two real ranks, against its own shadow: the same bytes in the same phases.

On a CPU what is measured is live tensors, so the trace is compared before the allocator. The optimizer step is left
out: torch's Adam takes its multi-tensor code on a GPU and the other one on a CPU.
"""

import dataclasses

import pytest

from memlab.compose import compose_config
from memlab.launch.job import Job
from memlab.launch.run import run_one
from memlab.plan import Plan, make_plan
from memlab.predict.events import ALLOC, FREE, PHASE, Trace
from memlab.predict.shadow.kinds import KERNEL_SCRATCH
from memlab.predict.shadow.request import Point, traces
from memlab.record import RunFolder

pytestmark = pytest.mark.cpu

COMPARED = ("model_build", "first_forward", "first_backward", "forward", "backward")


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_live_bytes_by_phase(stage, tmp_path):
    config, choices = compose_config(["model=tiny", f"zero_stage=zero{stage}", "hardware=cpu", "measure=quick"])
    plan = make_plan(config, choices)
    measured = run_one(Job(plan, RunFolder(tmp_path)))
    assert measured.status == "ok", measured.reason
    point = Point(0, config.batch.micro, config.seq_len.tokens)
    predicted = live_bytes(traces(on_a_gpu(plan), [point], tmp_path)[point])
    for name in COMPARED:
        assert predicted[name] == pytest.approx(measured.ranks[0]["phases"][name]["peak_allocated_bytes"], rel=1e-3)


WEIGHTS = 893_568  # parameters of model=tiny
# Rank 16 on the inputs and outputs of q, k, v, o, gate, up and down, in two layers.
ADAPTERS = 2 * 16 * (256 + 192 + 192 + 256 + 480 + 480 + 480)
BUCKET = 100_000
LEFT_BY_ZERO = {
    # Frozen weights in bf16; adapters in bf16 with the fp32 master and Adam's two states.
    0: 2 * WEIGHTS + (2 + 12) * ADAPTERS,
    2: 2 * WEIGHTS + (2 + 12 / 2) * ADAPTERS,
    # All of it is partitioned. Beside weights from zero.Init adapters stay in fp32; gradients and a bucket stay, too.
    3: 2 * WEIGHTS / 2 + (4 + 12 + 2) / 2 * ADAPTERS + 2 * BUCKET,
}


@pytest.mark.parametrize(("stage", "method"), [(0, "lora"), (1, "qlora"), (2, "lora"), (3, "lora")])
def test_adapters_by_phase(stage, method, tmp_path):
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


def on_a_gpu(plan: Plan) -> Plan:
    """The same plan, DeepSpeed JSON included, for a GPU."""
    arguments = {key: value for key, value in plan.training_args.items() if key != "use_cpu"}
    hardware = {**plan.config["hardware"], "device": "cuda", "gpu": "NVIDIA A100"}
    return dataclasses.replace(plan, training_args=arguments, config={**plan.config, "hardware": hardware})


def live_bytes(trace: Trace) -> dict[str, int]:
    """The highest sum of requested bytes in each phase, without what only kernels of a GPU take."""
    alive: dict[int, int] = {}
    now, phase, peaks = 0, "", {}
    for event in trace.events:
        if event[0] == ALLOC:
            alive[event[1]] = 0 if trace.sites[event[4]].kind == KERNEL_SCRATCH else event[2]
            now += alive[event[1]]
        elif event[0] == FREE:
            now -= alive.pop(event[1])
        elif event[0] == PHASE:
            phase = trace.phases[event[1]]
        peaks[phase] = max(peaks.get(phase, 0), now)
    return peaks
