"""Prediction of a plan as the record of a run: its traces, replayed through the allocator of the hardware entry."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from memlab.core.config import Config
from memlab.core.errors import ShadowError
from memlab.core.plan import Plan, shape_of
from memlab.core.record import RankResult, Record, worst
from memlab.core.summary import Work, summarise
from memlab.files.disk import is_full
from memlab.prediction.memory.fit_probability import shipped_ratios, support
from memlab.prediction.memory.rank_results import estimate, rank_results
from memlab.prediction.not_predicted import unpredictable
from memlab.prediction.time.calibrate import Calibration, calibrations_of
from memlab.prediction.time.step_time import StepTime, predict_step_time
from memlab.prediction.traces.choose_traces import traces_in_launch
from memlab.prediction.traces.store import code_digest
from memlab.runs.job import Job, record_of_plan
from memlab.simulator.trace.trace_format import Traces
from memlab.system.machine import Machine

NOWHERE = Machine()
"""Empty machine: a prediction depends on the hardware entry alone, not on the machine that computes it."""

SHADOW_FAILED = "the shadow run failed: "


def predict_one(job: Job) -> Record:
    """Predict one job and write its record."""
    job.start(command=[])
    record = predict(job.plan)
    job.folder.finish(record)
    return record


def failed_record(job: Job, reason: str) -> Record:
    """Return the record of a job that could not be predicted, and write it if the folder permits. Raises the error of a
    full disk."""
    record = _record(job.plan, status="failed", reason=reason)
    try:
        job.start(command=[])
        job.folder.finish(record)
    except Exception as error:  # writing may be what failed
        if is_full(error):
            raise
    return record


def predict(plan: Plan) -> Record:
    """Predict the record that a measurement of ``plan`` on its hardware entry would write: memory and step time."""
    return predict_launch([plan])[0]


def predict_launch(plans: Sequence[Plan]) -> list[Record]:
    """Predict the records of plans that differ in shape alone and run one after another in one launch.

    The order matters, because memory that a point leaves in the allocator is there when the next point begins. An
    out-of-memory ends the launch: the plans after it have no record.
    """
    if reasons := unpredictable(plans[0].config):
        return [_record(plan, status="unsupported", reason="; ".join(reasons)) for plan in plans]
    calibrations = calibrations_of(plans[0].config)
    began = time.perf_counter()
    try:
        traces = traces_in_launch(plans)
    except ShadowError as error:
        return [_record(plan, status="failed", reason=f"{SHADOW_FAILED}{error}") for plan in plans]
    took = {"trace_s": time.perf_counter() - began}  # trace_s and total_s are of the whole launch
    results = rank_results([plan.config for plan in plans], traces, calibrations.host)
    took["total_s"] = time.perf_counter() - began
    records: list[Record] = []
    for plan, ranks, own in zip(plans, results, traces, strict=False):
        ran = all(rank.status == "ok" for rank in ranks)
        step_time = predict_step_time(plan.config, own, calibrations.step) if ran else None
        seconds = [step_time.seconds] if step_time else []
        outcome = judged(plan.config, own, calibrations.host, ranks, step_time, seconds)
        outcome["timing"] |= took
        before = [list(shape_of(each.config)) for each in plans[: len(records)]]
        records.append(_record(plan, **outcome, isolation="shared" if before else "fresh", before_in_launch=before))
    return records


def judged(
    config: Config,
    traces: Traces,
    calibration: Calibration,
    results: Sequence[RankResult],
    step_time: StepTime | None,
    seconds: Sequence[float],
    work: Work | None = None,
) -> dict[str, Any]:
    """Return the fields of a predicted record that follow from the results of its ranks: verdict, summary, ranks.

    ``calibration``: gives the release delays. ``step_time``, ``seconds``: of the usual step, and of each timed step;
    ``None`` and none after an out-of-memory. ``work``: as in :func:`summarise`.
    """
    failed = next((rank for rank in results if rank.status != "ok"), None)
    needed = {"needed_bytes": estimate(config, traces.values(), calibration, limited=False).used} if failed else {}
    ranks = [asdict(replace(rank, step_seconds=list(seconds))) for rank in results]
    return {
        "status": failed.status if failed else "ok",
        "reason": f"rank {failed.rank}: {failed.reason}" if failed else None,
        "ranks": ranks,
        "summary": {
            **summarise(config, ranks, total_s=None, work=work),
            **(step_time.summary() if step_time else {}),
            "verdict": worst(rank["verdict"] for rank in ranks),
            **_fit_probability(config, ranks),
            **needed,
        },
        "steps": {**step_time.steps(), "seconds": list(seconds)} if step_time else {},
        "timing": step_time.timing() if step_time else {},
    }


def _fit_probability(config: Config, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the probability that all ranks fit (computed for the rank with the least room), the number of measured
    configurations whose errors it is based on, and how many of them have the same GPU and how many the same kind."""
    known = next((rank["fit_probability"] for rank in ranks if rank["fit_probability"] is not None), None)
    if known is None:
        return {}
    same_gpu, same_kind = support(config)
    return {
        "fit_probability": known,
        "fit_probability_from": len(shipped_ratios()),
        "fit_probability_same_gpu": same_gpu,
        "fit_probability_same_kind": same_kind,
    }


def _record(plan: Plan, **outcome) -> Record:
    return record_of_plan(plan, NOWHERE, {"predictor": code_digest()}, source="predicted", **outcome)
