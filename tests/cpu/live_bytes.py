"""What a shadow run says of a plan for the CPU: the bytes of its live tensors, which are all that a CPU run measures.

The trace is compared before the allocator. The optimizer step is left out: torch's Adam takes its multi-tensor code on
a GPU and the other one on a CPU.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from memlab.core.plan import Plan
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.memory_kinds import KERNEL_SCRATCH
from memlab.simulator.trace.trace_format import Trace
from memlab.training.simulated.shadow_process import Task, TraceKey, run_shadow

COMPARED = ("model_build", "first_forward", "first_backward", "forward", "backward")


def traced(plans: Sequence[Plan], folder: Path) -> list[Trace]:
    """The first rank of each plan, as if it had GPUs. All in one shadow process, which works in ``folder``."""
    points = [TraceKey(0, plan.config.batch.micro, plan.config.seq_len.tokens) for plan in plans]
    tasks = [
        Task(_on_a_gpu(plan), point, folder / f"{number}.trace.json")
        for number, (plan, point) in enumerate(zip(plans, points, strict=True))
    ]
    assert run_shadow(tasks, folder) == []
    return [Trace.load(task.path) for task in tasks]


def live_bytes(trace: Trace) -> dict[str, int]:
    """The highest sum of requested bytes in each phase, without what only kernels of a GPU take."""
    alive: dict[int, int] = {}
    now, phase, peaks = 0, "", {}
    for event in trace.events:
        if isinstance(event, Alloc):
            alive[event.key] = 0 if trace.sites[event.site].kind == KERNEL_SCRATCH else event.nbytes
            now += alive[event.key]
        elif isinstance(event, Free):
            now -= alive.pop(event.key)
        elif isinstance(event, BeginPhase):
            phase = trace.phases[event.phase]
        peaks[phase] = max(peaks.get(phase, 0), now)
    return peaks


def _on_a_gpu(plan: Plan) -> Plan:
    """The same plan, DeepSpeed JSON included, for a GPU."""
    arguments = {key: value for key, value in plan.training_args.items() if key != "use_cpu"}
    hardware = dataclasses.replace(plan.config.hardware, device="cuda", gpu="NVIDIA A100")
    config = dataclasses.replace(plan.config, hardware=hardware)
    return dataclasses.replace(plan, training_args=arguments, config=config)
