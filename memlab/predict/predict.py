"""A plan's prediction: traces, replayed through the allocator of the hardware entry, as the record of a run."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from memlab.config import Config, from_dict
from memlab.launch.environment import describe_environment, fingerprint
from memlab.launch.job import Job
from memlab.machine import Machine
from memlab.plan import Plan, shape_of
from memlab.predict import cache
from memlab.predict.calibration import calibration_for
from memlab.predict.events import Trace
from memlab.predict.limits import unpredictable
from memlab.predict.memory import every_rank
from memlab.predict.odds import shipped_ratios, support
from memlab.predict.shadow.request import ShadowError
from memlab.predict.timing import predict_timing
from memlab.predict.verdicts import worst
from memlab.record import RankResult, Record
from memlab.summary import summarise

NOWHERE = Machine()
"""A prediction is for the machine in its hardware entry and depends on no other."""


def finished(job: Job) -> Record | None:
    """The record that the job's folder holds, if the same predictor and calibration would make it again."""
    found = job.finished(NOWHERE)
    if found is None or found.environment.get("predictor") != cache.code_digest():
        return None
    calibration = calibration_for(job.config)
    return found if found.steps.get("calibration") == (calibration.digest if calibration else None) else None


def predict_one(job: Job) -> Record:
    """Predict one job and write its record."""
    return _keep(job, lambda: predict(job.plan))


def not_predicted(job: Job, reason: str) -> Record:
    """Write the record of a job whose shadow run is known to fail."""
    return _keep(job, lambda: _failed(job.plan, reason))


def failed_record(job: Job, reason: str) -> Record:
    """The record of a job whose prediction an exception ended, on disk where that can be written."""
    record = _record(job.plan, status="failed", reason=reason)
    with suppress(Exception):  # writing may be what failed
        _keep(job, lambda: record)
    return record


def _keep(job: Job, make: Callable[[], Record]) -> Record:
    job.start(command=[])
    record = make()
    job.folder.finish(record)
    return record


def predict(plan: Plan) -> Record:
    """The record that a measurement of ``plan`` on its hardware entry would write: memory, and the time of a step."""
    return predict_launch([plan])[0]


def predict_launch(plans: Sequence[Plan]) -> list[Record]:
    """The records of plans that differ in shape alone and are measured one after another in one launch.

    What a point leaves in the allocator is there when the next one begins, so their order matters. An out-of-memory
    ends the launch: the plans behind it have no record.
    """
    reasons = unpredictable(from_dict(plans[0].config))
    if reasons:
        return [_record(plan, status="unsupported", reason="; ".join(reasons)) for plan in plans]
    began = time.perf_counter()
    try:
        traces = cache.traces_in_launch(plans)
    except ShadowError as error:
        return [_failed(plan, str(error)) for plan in plans]
    took = {"trace_s": time.perf_counter() - began}  # this and the next of the whole launch
    results = every_rank(plans, traces)
    took["total_s"] = time.perf_counter() - began
    shapes = [list(shape_of(from_dict(plan.config))) for plan in plans]
    return [
        _point_record(plan, ranks, traces[index], took, shapes[:index])
        for index, (plan, ranks) in enumerate(zip(plans, results, strict=False))
    ]


def _point_record(
    plan: Plan,
    results: Sequence[RankResult],
    traces: Mapping[int, Trace],
    took: dict[str, float],
    before: list[list[int]],
) -> Record:
    config = from_dict(plan.config)
    failed = next((rank for rank in results if rank.status != "ok"), None)
    timing = None if failed else predict_timing(config, traces)
    ranks = [asdict(replace(rank, step_seconds=[timing.seconds] if timing else [])) for rank in results]
    return _record(
        plan,
        status=failed.status if failed else "ok",
        reason=f"rank {failed.rank}: {failed.reason}" if failed else None,
        ranks=ranks,
        summary={
            **summarise(config, ranks, total_s=None),
            **(timing.summary() if timing else {}),
            "verdict": worst(rank["verdict"] for rank in ranks),
            **_odds(config, ranks),
        },
        steps=timing.steps() if timing else {},
        timing={**(timing.timing() if timing else {}), **took},
        isolation="shared" if before else "fresh",
        before_in_launch=before,
    )


def _odds(config: Config, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The probability that all ranks fit (that of the rank with the least room), the number of measured configurations
    whose errors it comes from, and how many of these have the same GPU and are of the same kind."""
    known = next((rank["fit_probability"] for rank in ranks if rank["fit_probability"] is not None), None)
    if known is None:
        return {}
    found = support(config)
    return {
        "fit_probability": known,
        "fit_probability_from": len(shipped_ratios()),
        "fit_probability_same_gpu": found.same_gpu,
        "fit_probability_same_kind": found.same_kind,
    }


def _failed(plan: Plan, reason: str) -> Record:
    return _record(plan, status="failed", reason=f"the shadow run failed: {reason}")


def _record(plan: Plan, **outcome) -> Record:
    return Record(
        run_id=plan.run_id,
        source="predicted",
        config=plan.config,
        choices=plan.choices,
        fingerprint=fingerprint(plan, NOWHERE),
        environment={**describe_environment(plan, NOWHERE), "predictor": cache.code_digest()},
        **outcome,
    )
