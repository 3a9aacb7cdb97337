"""Traces of single points of memlab's own training."""

from collections.abc import Sequence
from pathlib import Path

from memlab.core.plan import Plan
from memlab.simulator.trace.trace_format import Trace
from memlab.training.simulated.shadow_process import Task, TraceKey, run_shadow


def shadow_traces(plan: Plan, keys: Sequence[TraceKey], folder: Path) -> dict[TraceKey, Trace]:
    """Trace ``keys`` of ``plan`` in a separate process that works in ``folder``."""
    tasks = [Task(plan, key, folder / key.file_name) for key in keys]
    assert not run_shadow(tasks, folder)
    return {task.key: Trace.load(task.path) for task in tasks}
