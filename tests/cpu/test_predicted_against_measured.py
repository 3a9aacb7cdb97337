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
