"""The record of a user's command."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import memlab
from memlab.core.noise import doubts
from memlab.core.record import Record
from memlab.core.run_id import config_hash, run_id
from memlab.core.summary import Work, slowest, summarise
from memlab.launch.user_command.found_config import FoundConfig
from memlab.launch.user_command.supervise import Finished
from memlab.runs.step_rows import for_record, over_ranks
from memlab.system.environment import describe_machine
from memlab.system.machine import Machine


def command_record(
    finished: Finished, found: FoundConfig, words: Sequence[str], steps: int | None, machine: Machine
) -> Record:
    """Build the record. ``words``: the command; ``steps``: the number of steps that it was to end after."""
    rows = over_ranks(finished.rows)
    ranks = [{key: value for key, value in rank.items() if key != "runtime"} for rank in finished.ranks]
    environment = environment_of(finished.ranks, machine)
    names = dict.fromkeys(name for rank in ranks for name in rank["timing"])
    seconds, warmup = slowest(ranks, "step_seconds"), slowest(ranks, "warmup_seconds")
    return Record(
        run_id=run_id(found.config, found.unknown),
        source="measured",
        status=finished.status,
        reason=finished.reason,
        config=found.config,
        choices=found.choices,
        fingerprint=_fingerprint(found, environment),
        environment=environment,
        ranks=ranks,
        steps={
            "warmup": len(warmup),
            "measured": len(seconds),
            "repeat": found.config.measure.repeat,
            "seconds": seconds,
            "warmup_seconds": warmup,
            "doubts": doubts(seconds),
            "rows": for_record(rows),
        },
        summary=summarise(found.config, ranks, finished.ended.seconds, _work(rows[len(warmup) :])),
        timing={name: max(rank["timing"].get(name, 0.0) for rank in ranks) for name in names}
        | {"total_s": finished.ended.seconds},
        unknown_config=list(found.unknown),
        command={"words": list(words), "exit_code": finished.ended.returncode, "steps": steps, "disagreements": []},
    )


def _work(rows: Sequence[Mapping[str, Any]]) -> Work:
    return Work(*(_mean([row[key] for row in rows]) for key in ("samples", "tokens")))


def _mean(values: Sequence[float | None]) -> float | None:
    return mean(values) if values and None not in values else None


def environment_of(ranks: Sequence[Mapping[str, Any]], machine: Machine) -> dict[str, Any]:
    """Return the facts that a measurement depends on, of the command's own interpreter."""
    first = ranks[0] if ranks else {"attached": {}, "runtime": {}}
    facts = first["attached"]
    return {
        "memlab": memlab.__version__,
        **(facts.get("versions") or {}),
        **describe_machine(machine),
        **first["runtime"],
        "variables": facts.get("environment") or {},
    }


def _fingerprint(found: FoundConfig, environment: Mapping[str, Any]) -> str:
    facts = [config_hash(found.config, found.unknown), environment]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
