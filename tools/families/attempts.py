"""Predictions of one small model of each family: which families can be predicted, and why the others cannot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memlab.core.config import Config
from memlab.core.plan import Plan, make_plan
from memlab.prediction.memory.rank_results import estimate
from memlab.prediction.time.calibrate import Calibrations, calibrations_of
from memlab.prediction.time.step_time import predict_step_time
from memlab.simulator.trace.trace_format import Trace
from memlab.training.simulated.shadow_process import Task, TraceKey, run_shadow


@dataclass(frozen=True)
class ModelFamily:
    """A ``model_type`` of transformers and the class of its causal language model. ``config``: the value of
    ``Config.model.config``; ``None`` if there is none, and ``reason`` says why."""

    name: str
    model: str
    config: dict[str, Any] | None = None
    attention: str = "sdpa"
    reason: str = ""


@dataclass(frozen=True)
class Attempt:
    """Prediction of a family's model. ``used``: bytes of the device. ``reason``: why there is no prediction.
    ``unknown``: quantities other than memory that could not be computed, each with the reason."""

    family: ModelFamily
    parameters: int | None = None
    used: int | None = None
    step_s: float | None = None
    reason: str = ""
    unknown: dict[str, str] = field(default_factory=dict)


def attempts(
    families: Sequence[ModelFamily], config: Config, folder: Path, cpu_limit_s: int, on_progress: Callable[[int], None]
) -> list[Attempt]:
    """Predict a model of each family, all else as in ``config``, in one shadow process that works in ``folder``.

    ``cpu_limit_s``: seconds of CPU time for each family; one that takes longer is not predicted. ``on_progress`` is
    called now and then with the number of finished traces.
    """
    calibrations = calibrations_of(config)
    key = TraceKey(0, config.batch.micro, config.seq_len.tokens)
    tasks = {
        family.name: Task(_plan(config, family), key, folder / f"{family.name}.trace.json")
        for family in families
        if family.config
    }
    failed = {task.path: reason for task, reason in run_shadow(list(tasks.values()), folder, on_progress, cpu_limit_s)}
    return [_attempt(family, tasks.get(family.name), failed, calibrations) for family in families]


def _plan(config: Config, family: ModelFamily) -> Plan:
    model = replace(config.model, path=family.name, config=family.config or {})
    attention = replace(config.attention, implementation=family.attention)
    return make_plan(replace(config, model=model, attention=attention), {})


def _attempt(family: ModelFamily, task: Task | None, failed: dict[Path, str], calibrations: Calibrations) -> Attempt:
    if task is None or task.path in failed:
        return Attempt(family, reason=failed[task.path] if task else family.reason)
    trace = Trace.load(task.path)
    config = task.plan.config
    step_time = predict_step_time(config, {0: trace}, calibrations.step)
    return Attempt(
        family,
        parameters=trace.parameters,
        used=estimate(config, [trace], calibrations.host, limited=False).used,
        step_s=step_time.seconds if step_time else None,
        unknown=trace.unknown,
    )
