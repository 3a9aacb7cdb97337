"""Steps of a command whose traces count work in different steps."""

from dataclasses import replace

from memlab.core.basis import BOUND, Basis
from memlab.prediction.time.calibrate import shipped
from memlab.prediction.time.clocks import LOWER_BOUND, step_seconds
from memlab.prediction.time.step_time import OWN_PYTHON, predict_step_time, predict_steps
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import HALF, PAGEABLE, Copy, KernelLaunch

SPEEDS = {
    "bf16_tflops": 989.5,
    "fp32_tflops": 67.0,
    "memory_gb_per_s": 4800.0,
    "link_gb_per_s": 450.0,
    "host_gb_per_s": 64.0,
}
H200 = {"device": "cuda", "gpu": "NVIDIA H200", "gpus": 2, "memory_gib": 140.0, **SPEEDS}


def test_ranks_without_a_common_step_have_no_step_time(config):
    first = Trace(0, 2, steps=[0, 10], work=[KernelLaunch(1, 0, 0, HALF, 0, (1 << 20,))])
    last = replace(first, rank=1, steps=[0, 10, 20, 30])
    known = config({f"hardware.{key}": value for key, value in H200.items()})
    assert predict_steps(known, {0: first, 1: last}, shipped()) == ({}, None)
    assert list(predict_steps(known, {0: first, 1: replace(last, steps=[0, 10])}, shipped())[0]) == [2]


def test_the_step_of_a_command_is_a_bound_at_full_datasheet_speed(config):
    """The calibration's error is that of memlab's own training, and its costs are no bound: they may be too high."""
    trace = Trace(0, 2, steps=[0, 10], work=[KernelLaunch(1, 0, 0, HALF, 10**13, (1 << 20,))])
    known = config({f"hardware.{key}": value for key, value in H200.items()})
    seconds, step = predict_steps(known, {0: trace}, shipped())
    assert step is not None and step.basis == Basis(BOUND, reason=OWN_PYTHON)
    assert seconds[2] == step.seconds == step.lower_bound == step_seconds(known, {0: trace}, LOWER_BOUND)
    assert step.calibrated == step_seconds(known, {0: trace}, shipped().costs) > step.seconds
    assert step.timing()["step_s_range"] == [step.seconds, None] and step.steps()["error"] is None


def test_a_bound_of_memlab_s_own_training_is_at_full_datasheet_speed_too(config):
    """Copies from unpinned memory have a cost that no record determines."""
    trace = Trace(0, 2, work=[Copy(1, 0, 0, True, PAGEABLE, 1 << 33)])
    known = config({f"hardware.{key}": value for key, value in H200.items()})
    step = predict_step_time(known, {0: trace}, shipped())
    assert step is not None and step.basis.is_bound and "not calibrated" in (step.basis.reason or "")
    assert step.seconds == step.lower_bound <= (step.calibrated or 0)
