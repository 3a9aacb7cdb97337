"""Steps of a command whose traces count work in different steps."""

from dataclasses import replace

from memlab.predict.time.calibration import shipped
from memlab.predict.time.step_time import predict_steps
from memlab.predict.trace.trace_format import Trace
from memlab.predict.trace.work_items import KernelLaunch

SPEEDS = {
    "bf16_tflops": 989.5,
    "fp32_tflops": 67.0,
    "memory_gb_per_s": 4800.0,
    "link_gb_per_s": 450.0,
    "host_gb_per_s": 64.0,
}
H200 = {"device": "cuda", "gpu": "NVIDIA H200", "gpus": 2, "memory_gib": 140.0, **SPEEDS}


def test_ranks_without_a_common_step_have_no_step_time(config):
    first = Trace(0, 2, steps=[0, 10], work=[KernelLaunch(1, 0, 0, True, 0, (1 << 20,))])
    last = replace(first, rank=1, steps=[0, 10, 20, 30])
    known = config({f"hardware.{key}": value for key, value in H200.items()})
    assert predict_steps(known, {0: first, 1: last}, shipped()) == ({}, None)
    assert list(predict_steps(known, {0: first, 1: replace(last, steps=[0, 10])}, shipped())[0]) == [2]
