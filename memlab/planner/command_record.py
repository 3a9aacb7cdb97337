"""Record of a predicted command: its traces, judged by the code that judges memlab's own predictions."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from memlab.core.config import Config, Hardware
from memlab.core.plan import Plan
from memlab.core.record import EARLY, RankResult, Record
from memlab.core.record_schema import SandboxEffects
from memlab.launch.user_command.found_config import found_values, plan_found
from memlab.launch.user_command.measure import command_record, plan_of_command, work_of
from memlab.prediction.memory.rank_results import Estimate, needs, rank_results
from memlab.prediction.memory.shared_gpus import gpus_of_ranks
from memlab.prediction.prediction import NOWHERE, judged
from memlab.prediction.time.calibrate import calibrations_of
from memlab.prediction.time.step_time import predict_steps, usual_steps
from memlab.prediction.traces.store import code_digest
from memlab.runs.step_rows import rows_over_ranks
from memlab.simulator.rank.unpredictable import NAME
from memlab.simulator.trace.trace_format import Traces

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class TracedCommand:
    """A command that ran on simulated GPUs.

    ``meters``: the files of the traced ranks, ``rows``: their steps; both as the meters wrote them, by rank. Their
    memory and times are those of the simulation. ``seconds``: how long the simulation took. ``effects``: those that it
    would have had outside of its sandbox. ``allocator_conf``: settings of the allocator in place of the command's own.
    ``as_run``: traces of the ranks without the steps that were left out.
    """

    words: Sequence[str]
    steps: int | None
    hardware: Hardware
    traces: Traces
    meters: Mapping[int, Mapping[str, Any]]
    rows: Mapping[int, Rows]
    seconds: float
    effects: SandboxEffects
    allocator_conf: str | None = None
    as_run: Traces = field(default_factory=dict)

    @property
    def gpus_of_ranks(self) -> list[int]:
        """Index of each rank's GPU on its node."""
        return gpus_of_ranks(self.traces, self._facts["world_size"], self.ranks_of_node, self.hardware.gpus)

    @property
    def ranks_of_node(self) -> int:
        return self._facts["local_world_size"] or self._facts["world_size"]

    @property
    def _facts(self) -> Mapping[str, Any]:
        return self.meters[min(self.meters)]["attached"]

    @property
    def config(self) -> Config:
        return self.plan.config

    @cached_property
    def plan(self) -> Plan:
        """What the script used, on the hardware entry that was asked for."""
        hardware = {f"hardware.{key}": value for key, value in asdict(self.hardware).items()}
        found = found_values([self.meters[rank] for rank in sorted(self.meters)], self.rows, shlex.join(self.words))
        used = {key: found.get(key, 1) for key in ("hardware.gpus", "hardware.nodes")}  # 1: more than the schema takes
        first = self.traces[min(self.traces)]
        return plan_found(
            {
                **found,
                **hardware,
                **used,
                "allocator.conf": first.allocator_conf if self.allocator_conf is None else self.allocator_conf,
                "measure.steps": max(1, len(first.steps) - 1),  # as of a measured command: without the first step
            }
        )


def record_of_traces(command: TracedCommand) -> tuple[Record, dict[int, Rows]]:
    """Predict memory and time from the traces. Returns the record, and the rows of each rank's steps."""
    config = command.config
    calibrations = calibrations_of(config)
    (results,) = rank_results([config], [command.traces], calibrations.host)
    ran = all(result.status == "ok" for result in results)
    is_alone = not any(trace.beside for trace in command.traces.values())  # else ranks wait for each other's kernels
    seconds, step_time = predict_steps(config, command.traces, calibrations.step) if ran and is_alone else ({}, None)
    rows = {result.rank: _rows(command, result, seconds) for result in results}
    usual = usual_steps(command.traces, seconds)
    outcome = judged(
        config,
        command.traces,
        calibrations.host,
        [_with_meters(command, result, rows) for result in results],
        step_time,
        [seconds[step] for step in usual],
        work_of([row for row in rows_over_ranks(rows) if row["step"] in usual]),
    )
    paid, used = command.hardware.gpus, config.hardware.gpus
    if usd := outcome["summary"].get("usd_per_million_tokens"):
        outcome["summary"]["usd_per_million_tokens"] = usd * paid / used
    outcome |= {"source": "predicted", "steps": {"doubts": [], **outcome["steps"]}}
    outcome["timing"]["total_s"] = command.seconds
    facts = {
        "words": list(command.words),
        "steps": command.steps,
        "disagreements": [{"key": "hardware.gpus", "composed": paid, "found": used}] if paid != used else [],
        "assumed": {line: times for trace in command.traces.values() for line, times in trace.assumed.items()},
        "epochs": [epoch for trace in command.traces.values() for epoch in trace.epochs],
        "effects": command.effects,
    }
    for each in command.meters.values():
        if each["attached"].get("ended") == EARLY:
            facts.setdefault("ended_early", _early_end(each))
    ranks = outcome.pop("ranks")
    record = command_record(command.plan, ranks, rows, command.seconds, facts, NOWHERE, **outcome)
    return replace(record, environment={**record.environment, "predictor": code_digest()}), rows


def record_without_traces(status: str, reason: str, words: Sequence[str], steps: int | None, seconds: float) -> Record:
    """Return the record of a command that left no trace. ``seconds``: how long it ran."""
    facts = {"words": list(words), "steps": steps}
    fields = {"source": "predicted", "status": status, "reason": reason}
    return command_record(plan_of_command(words), [], {}, seconds, facts, NOWHERE, **fields)


def estimate_of(command: TracedCommand) -> Estimate:
    """Return the verdict, and the memory that the command would need on a GPU of any size."""
    config = command.config
    return needs(config, list(command.traces.values()), calibrations_of(config).host)


def _early_end(meters: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``command.ended_early`` of a record. ``meters``: the file of the rank that ended early."""
    facts, reason = meters["attached"], meters["reason"]
    reason = reason.removeprefix(NAME).removeprefix(f"{facts['where']}: ")
    return {"phase": facts["failed_in"], "where": facts["where"], "reason": reason, "steps": facts["steps"]}


def _like(result: RankResult) -> int:
    return result.rank if result.same_as_rank is None else result.same_as_rank


def _rows(command: TracedCommand, result: RankResult, seconds: Mapping[int, float]) -> Rows:
    """Return the steps that a rank reached the end of: their batches as the meters saw them, with predicted figures."""
    oom = result.oom or {}
    stopped_in = oom.get("run_as_step", oom.get("step"))
    memory = (result.attached or {})["steps"]
    return [
        {**row, "seconds": seconds.get(row["step"]), **memory[row["step"]]}
        for row in command.rows[_like(result)]
        if row["step"] in memory and row["step"] != stopped_in
    ]


def _with_meters(command: TracedCommand, result: RankResult, rows: Mapping[int, Rows]) -> RankResult:
    """Add what the meters found out to the predicted figures of a rank."""
    meters = command.meters[_like(result)]
    memory = result.attached or {}
    step = memory["peak"].get("run_as_step", memory["peak"]["step"])
    batch = next((row for row in rows[result.rank] if row["step"] == step), {})
    ended = {"ended": "exception", "failed_in": oom["phase"], "where": oom["where"]} if (oom := result.oom) else {}
    return replace(
        result,
        device=f"cuda:{command.gpus_of_ranks[result.rank]}",
        parameters=meters["parameters"],
        trainable_parameters=meters["trainable_parameters"],
        skipped_steps=meters["skipped_steps"],
        unknown={**meters["unknown"], **result.unknown},
        attached={
            **meters["attached"],
            **memory,
            **ended,
            "rank": result.rank,
            "local_rank": result.rank % command.ranks_of_node,
            "steps": len(rows[result.rank]),
            "peak": {**memory["peak"], **{key: batch.get(key) for key in ("samples", "tokens", "longest_sample")}},
        },
    )
