"""DeepSpeed's compiled ops: the ops that a plan needs, and building them before anything is timed."""

import sys
import tempfile
from pathlib import Path

from memlab.core.diagnosis import FAIL, OK, Diagnosis
from memlab.core.plan import Plan
from memlab.launch.launch_control import LaunchControl
from memlab.launch.outcome import tail
from memlab.launch.process import Launch
from memlab.launch.streams import ToLog
from memlab.system.environment import extensions_dir, rank_environment, sweep_stale_locks
from memlab.system.machine import Machine

BUILD_TIMEOUT_S = 1200
"""Ten times the build time of the slowest op on 2 cores, in seconds."""

GPU_OPTIMIZERS = {"adam": "FusedAdam", "adamw": "FusedAdam", "lamb": "FusedLamb", "lion": "FusedLion"}
CPU_OPTIMIZERS = {"adam": "CPUAdam", "adamw": "CPUAdam", "adagrad": "CPUAdagrad", "lion": "CPULion"}
"""``optimizer.type`` of the DeepSpeed JSON in lower case -> its op, on the GPU and offloaded to the CPU.

Source: ``DeepSpeedEngine._configure_basic_optimizer`` of DeepSpeed 0.19.8. Other optimizers are torch's and need no op.
"""

NEED_NVCC = frozenset({"FusedAdam", "FusedLamb", "FusedLion", "Quantizer"})
"""Ops with CUDA kernels. The other ops are compiled only for the host, also on a machine with GPUs."""


LIBRARIES = {
    "AsyncIO": "async_io",
    "CPUAdagrad": "cpu_adagrad",
    "CPUAdam": "cpu_adam",
    "CPULion": "cpu_lion",
    "FusedAdam": "fused_adam",
    "FusedLamb": "fused_lamb",
    "FusedLion": "fused_lion",
    "Quantizer": "quantizer",
    "ShareMemComm": "deepspeed_shm_comm",
}
"""Op -> ``NAME`` of its builder in deepspeed/ops/op_builder (DeepSpeed 0.19.8), which names its folder and file in
TORCH_EXTENSIONS_DIR."""


def needed_ops(plan: Plan) -> list[str]:
    """List the ops that a run of the plan compiles at first use: names of DeepSpeed's builders without ``Builder``."""
    zero = plan.deepspeed["zero_optimization"]
    offloaded = [zero[key]["device"] for key in ("offload_optimizer", "offload_param") if key in zero]
    on_cpu = plan.environment["DS_ACCELERATOR"] == "cpu"
    ops = ["ShareMemComm"] if on_cpu else []  # compiled with the process group, for every world size
    optimizer = plan.deepspeed.get("optimizer")
    if optimizer is not None and not optimizer["params"].get("torch_adam"):
        names = CPU_OPTIMIZERS if "offload_optimizer" in zero else GPU_OPTIMIZERS
        ops += [names[kind]] if (kind := optimizer["type"].lower()) in names else []
    if "nvme" in offloaded:
        ops.append("AsyncIO")
    if any(value is True for key, value in zero.items() if key.startswith("zero_quantized_")):
        ops.append("Quantizer")
    return ops


def unbuilt_ops(plan: Plan) -> list[str]:
    """List the needed ops without a built library in their folder (layout of torch.utils.cpp_extension)."""
    folder = extensions_dir()
    return [op for op in needed_ops(plan) if not (folder / LIBRARIES[op] / f"{LIBRARIES[op]}.so").exists()]


def build(op: str, plan: Plan, machine: Machine) -> Diagnosis:
    """Build an op as a rank would, or load it if it is already built. Takes up to a few minutes."""
    subject = f"op {op}"
    with tempfile.TemporaryDirectory(prefix="memlab-build-") as folder:
        log = Path(folder) / "build.log"
        command = [sys.executable, "-m", "memlab.training.build_op", op]
        with Launch(command, rank_environment(plan, machine), ToLog(log)) as launch:
            ended = launch.wait(lambda: BUILD_TIMEOUT_S, lambda: None, LaunchControl())
        if ended.returncode == 0:
            return Diagnosis(OK, subject, f"ready after {ended.seconds:.1f} s")
        sweep_stale_locks()  # a killed build leaves its lock
        if ended.how == "timeout":
            return Diagnosis(
                FAIL, subject, f"not built after {BUILD_TIMEOUT_S} s", "build it while the machine is idle"
            )
        return Diagnosis(FAIL, subject, f"cannot be built: {_reason(log)}", "see the compiler and versions above")


def _reason(log: Path) -> str:
    """Return the first compiler error in a build log, or else its last line, a Python exception."""
    lines = [line.strip() for line in tail(log, 400).splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    return (errors or lines[-1:] or ["nothing was said"])[0][:300]
