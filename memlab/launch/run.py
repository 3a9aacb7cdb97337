"""Plans in, records out: one launch, one or several points, every point a run folder with a record."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memlab.config import from_dict
from memlab.errors import RecordError
from memlab.launch.command import command, free_port
from memlab.launch.environment import describe_environment, fingerprint, rank_environment, sweep_stale_locks
from memlab.launch.outcome import host_oom_kills, outcome
from memlab.launch.process import Ended, Launch
from memlab.machine import Machine, detect
from memlab.plan import Plan
from memlab.record import FINAL, Record, RunFolder
from memlab.rules import unsupported
from memlab.summary import slowest, summarise


def run_one(plan: Plan, folder: RunFolder, force: bool = False) -> Record:
    """Measure one plan in its folder, unless the folder already holds what would be measured again."""
    machine = detect()
    if not force and (found := finished(folder, fingerprint(plan, machine))):
        return found
    reasons = unsupported(from_dict(plan.config), machine)
    if reasons:
        return record_unsupported(plan, folder, reasons, machine)
    record = run_launch([plan], [folder], machine)[0]
    if record.status == "infra":  # a port, a network: once more
        record = run_launch([plan], [folder], machine)[0]
    return record


def finished(folder: RunFolder, wanted: str) -> Record | None:
    """The record of an earlier run that would come out the same again: same fingerprint, and a final status."""
    try:
        record = folder.read_record()
    except RecordError:
        return None
    return record if record.fingerprint == wanted and record.status in FINAL else None


def record_unsupported(plan: Plan, folder: RunFolder, reasons: Sequence[str], machine: Machine) -> Record:
    folder.start(plan, command=[])
    record = replace(_new_record(plan, machine, "fresh"), status="unsupported", reason="; ".join(reasons))
    folder.finish(record)
    return record


def run_launch(plans: Sequence[Plan], folders: Sequence[RunFolder], machine: Machine) -> list[Record]:
    """Measure plans that differ in shape alone in one launch, one after another.

    A record for each point that was reached, in order; the last of them is the one that the launch ended in. Every
    record is on disk as soon as its point is over.
    """
    launch = _PointsInOneLaunch(plans, folders, machine)
    return launch.run()


class _PointsInOneLaunch:
    def __init__(self, plans: Sequence[Plan], folders: Sequence[RunFolder], machine: Machine):
        self.plans, self.folders, self.machine = plans, folders, machine
        self.world_size = plans[0].world_size
        self.records: list[Record] = []
        self.reached_at = [0.0]  # seconds since the launch began at which each point was finished

    def run(self) -> list[Record]:
        sweep_stale_locks()
        gpu_ids = [gpu.id for gpu in self.machine.gpus[: self.world_size]]
        words = command(self.plans[0], self.folders, gpu_ids, free_port())
        for plan, folder in zip(self.plans, self.folders, strict=True):
            folder.start(plan, words)
        kills = host_oom_kills()
        environment = rank_environment(self.plans[0], self.machine)
        environment["MEMLAB_STARTED_AT"] = repr(time.time())
        with Launch(words, environment, self.folders[0].launcher_log) as launch:
            try:
                ended = launch.wait(self._deadline, lambda: self._collect(launch))
            except KeyboardInterrupt:
                ended = Ended("interrupted", None, launch.seconds)
        self._collect(launch)
        if len(self.records) < len(self.plans):
            self._close(ended, host_oom_kills() - kills)
        return self.records

    def _deadline(self) -> float:
        """Every point has its time limit, from when the one before it was finished."""
        index = min(len(self.records), len(self.plans) - 1)
        return self.reached_at[-1] + self.plans[index].config["measure"]["timeout_s"]

    def _collect(self, launch: Launch) -> bool:
        """Write the records of the points that all ranks have finished. True when none is left."""
        while len(self.records) < len(self.plans):
            ranks = self.folders[len(self.records)].read_ranks(self.world_size)
            if len(ranks) < self.world_size or any(rank["status"] != "ok" for rank in ranks):
                return False
            self._write(ranks, "ok", None, launch.seconds)
        return True

    def _close(self, ended: Ended, host_ooms: int) -> None:
        """Write the record of the point that the launch ended in."""
        folder = self.folders[len(self.records)]
        ranks = folder.read_ranks(self.world_size)
        status, reason = outcome(folder, ranks, self.world_size, ended, host_ooms)
        self._write(ranks, status, reason, ended.seconds)

    def _write(self, ranks: list[dict[str, Any]], status: str, reason: str | None, now: float) -> None:
        index = len(self.records)
        plan, folder = self.plans[index], self.folders[index]
        total_s = now - self.reached_at[-1]
        self.reached_at.append(now)
        isolation = "shared" if len(self.plans) > 1 else "fresh"
        record = complete(_new_record(plan, self.machine, isolation), plan, ranks, total_s)
        record = replace(record, status=status, reason=reason)
        folder.finish(record)
        self.records.append(record)


def complete(record: Record, plan: Plan, ranks: list[dict[str, Any]], total_s: float) -> Record:
    """The record with what the ranks measured. ``total_s`` is the wall clock that this point took."""
    config = from_dict(plan.config)
    runtime = next((rank.pop("runtime") for rank in ranks if rank.get("runtime")), {})
    for rank in ranks:
        rank.pop("runtime", None)
    measured = slowest(ranks, "step_seconds")
    warmup = slowest(ranks, "warmup_seconds")
    timing = {key: max(rank["timing"].get(key, 0.0) for rank in ranks) for key in _timing_keys(ranks)}
    return replace(
        record,
        environment={**record.environment, **runtime},
        ranks=ranks,
        steps={
            "warmup": config.measure.warmup,
            "measured": config.measure.steps,
            "repeats": 1,
            "seconds": measured,
            "warmup_seconds": warmup,
        },
        summary=summarise(config, ranks, total_s),
        timing={**timing, "total_s": total_s},
    )


def _timing_keys(ranks: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for rank in ranks for key in rank["timing"]))


def _new_record(plan: Plan, machine: Machine, isolation: str) -> Record:
    return Record(
        run_id=plan.run_id,
        source="measured",
        status="failed",
        config=plan.config,
        choices=plan.choices,
        fingerprint=fingerprint(plan, machine),
        environment=describe_environment(plan, machine),
        isolation=isolation,
    )
