"""Jobs: a plan and its run folder, the unit that memlab runs, skips or records without running. Results of a
sweep, and its observer interface.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from memlab.core.command_template import PORT, template
from memlab.core.config import Config
from memlab.core.config_values import flat, to_dict, with_own_names, without
from memlab.core.errors import FolderError, RecordError
from memlab.core.grouping import grouped
from memlab.core.plan import NOT_MEASURED, Plan, memory_key, shape_of, subject_key
from memlab.core.record import FINAL, FITS, OUT_OF_MEMORY, Record
from memlab.core.schema import shown
from memlab.core.summary import fields_of_ranks
from memlab.runs.command_inputs import are_unchanged
from memlab.runs.folder import RunFolder
from memlab.system.environment import describe_environment, fingerprint
from memlab.system.machine import Machine


@dataclass
class Job:
    plan: Plan
    folder: RunFolder
    prepare: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called before the plan is written: saves the inputs that the plan was composed from."""

    @property
    def config(self) -> Config:
        return self.plan.config

    @property
    def size(self) -> int:
        """Tokens of a forward pass. Memory grows with this size."""
        return self.config.batch.micro * self.config.seq_len.tokens

    @cached_property
    def memory_key(self) -> str:
        return memory_key(self.config)

    @cached_property
    def subject_key(self) -> str:
        return subject_key(self.config)

    @property
    def gpus(self) -> int:
        """The number of GPUs of this machine that the job needs."""
        return self.plan.ranks_per_node if self.config.hardware.device == "cuda" else 0

    def is_alone(self, side_by_side: str) -> bool:
        """Whether the job must run without other launches beside it, which would change its speed.

        ``side_by_side`` is the option of the sweep: with ``auto``, a job that offloads runs alone, because it uses the
        whole host. CPU jobs always run alone, and so do jobs on several nodes: memlab does not know which GPUs of other
        nodes are free. Commands run alone unless each gets a port of its own: their launchers all take the same one.
        """
        if self.config.hardware.device == "cpu" or self.plan.is_multi_node:
            return True
        if PORT not in template(self.config).places:
            return True
        if side_by_side == "auto":
            return (self.config.offload.optimizer, self.config.offload.param) != ("none", "none")
        return side_by_side == "never"

    def is_implied_by(self, other: "Job") -> bool:
        """Whether this job runs out of memory if ``other`` does: the same configuration at a batch and length that are
        not smaller."""
        mine, others = shape_of(self.config), shape_of(other.config)
        return self.memory_key == other.memory_key and others[0] <= mine[0] and others[1] <= mine[1]

    def refuse_other_run(self, force: bool = False) -> None:
        """Raise :class:`FolderError` if the folder holds foreign files or, unless ``force``, the run of another
        configuration. How a configuration was composed does not count, only its values."""
        self.folder.refuse_foreign_files()
        there = self.folder.earlier()
        if not force and there.get("run_id", self.plan.run_id) != self.plan.run_id:
            raise FolderError(
                f"{self.folder} holds the run of another configuration ({_difference(there, self.plan)}). Choose "
                "another folder, or replace that run with force=true (memlab measure and predict: --force)."
            )

    def start(self, command: list[str]) -> None:
        self.folder.claim()
        self.prepare()
        self.folder.start(self.plan, command)

    def finished(self, machine: Machine, also_implied: bool = True) -> Record | None:
        """Return the record of an earlier run with the same fingerprint and a final status, or ``None``.

        ``unsupported`` does not count as final here: a missing package or hostfile may exist by now. The files that a
        command read must be unchanged. ``also_implied``: accept implied records too.
        """
        try:
            record = self.folder.read_record()
        except RecordError:
            return None
        known = record.status in FINAL and record.status != "unsupported"
        same = known and record.fingerprint == fingerprint(self.plan, machine) and are_unchanged(record)
        return record if same and (also_implied or not record.is_implied) else None

    def record_without_running(self, machine: Machine, status: str, reason: str) -> Record:
        """Record a status that needs no run: an unsupported combination, or a size above one that did not fit."""
        self.start(command=[])
        record = self.new_record(machine, status, reason)
        self.folder.finish(record)
        return record

    def new_record(self, machine: Machine, status: str, reason: str) -> Record:
        source = "predicted" if self.config.mode == "predict" else "measured"
        return record_of_plan(self.plan, machine, source=source, status=status, reason=reason)

    def measured_record(self, machine: Machine, ranks: Sequence[dict[str, Any]], total_s: float, **fields) -> Record:
        """Build the record from the results of the ranks. ``total_s``: wall-clock time of this job, in seconds."""
        runtime: dict[str, Any] = next((rank["runtime"] for rank in ranks if rank["runtime"]), {})
        own = [{**rank, "attached": None} for rank in ranks]  # facts about the script, which the plan holds
        fields |= fields_of_ranks(self.config, own, total_s)
        fields["steps"] |= {"warmup": self.config.measure.warmup, "measured": self.config.measure.steps}
        return record_of_plan(self.plan, machine, runtime, source="measured", **fields)


def record_of_plan(plan: Plan, machine: Machine, found: Mapping[str, Any] | None = None, **fields: Any) -> Record:
    """Build the record of a run of memlab's own training.

    ``found``: facts of the environment that only ranks or the predictor know. ``fields``: as of :func:`record_of`.
    """
    environment = describe_environment(plan, machine) | dict(found or {})
    return record_of(plan, environment, fingerprint(plan, machine), **fields)


def record_of(plan: Plan, environment: dict[str, Any], fingerprint: str, **fields: Any) -> Record:
    """Build the record of a plan, measured or predicted. ``fields``: source, status and all that follows from ranks."""
    return Record(
        run_id=plan.run_id,
        config=plan.config,
        choices=plan.choices,
        unknown_config=list(plan.unknown_config),
        environment=environment,
        fingerprint=fingerprint,
        **fields,
    )


def _difference(there: Mapping[str, Any], plan: Plan) -> str:
    """Name the first keys that differ between an earlier plan or record and a new plan."""
    new = flat(with_own_names(without(to_dict(plan.config), NOT_MEASURED)))
    config = there.get("config")
    old = flat(with_own_names(config)) if isinstance(config, dict) else {}
    keys = [key for key in new if key in old]
    keys += [key for key in {**old, **new} if old and key.partition(".")[0] not in vars(plan.config)]  # the user's own
    differing = [key for key in dict.fromkeys(keys) if old.get(key) != new.get(key)]
    told = [f"{key}: {shown(old.get(key))} there, {shown(new.get(key))} here" for key in differing[:3]]
    return "; ".join(told) or shown(there["run_id"])


def check_folders(jobs: Iterable[Job]) -> None:
    """Raise :class:`FolderError` if the folder of a job holds another run, or is that of another point, too."""
    by_folder: dict[str, Job] = {}
    for job in jobs:
        first = by_folder.setdefault(str(job.folder), job)
        if first.plan.run_id != job.plan.run_id:
            both = _difference(first.plan.to_json(), job.plan)
            raise FolderError(
                f"Two points of the sweep would run in {job.folder} ({both}). Leave out hydra.sweep.subdir, or "
                "write ${hydra.job.num} into it."
            )
        job.refuse_other_run(job.config.force)


def unique(jobs: Iterable[Job]) -> list[Job]:
    """Drop jobs with the same folder: Hydra would run equal points twice."""
    return list({str(job.folder): job for job in jobs}.values())


def by_kind(jobs: Iterable[Job]) -> list[list[Job]]:
    """Separate the jobs of memlab's own training, which come first, from those of commands."""
    found = grouped(jobs, lambda job: job.config.is_command)
    return [found[kind] for kind in sorted(found)]


def usd_per_hour(jobs: Iterable[Job]) -> float:
    """Return the price of the hardware of the jobs that measure, in US dollars per hour; 0 if it is unknown."""
    rates = (job.config.hardware.total_usd_per_hour for job in jobs if job.config.mode == "measure")
    return next((rate for rate in rates if rate is not None), 0.0)


SLOWER = 0.9
"""A size thrashes if it trains fewer tokens per second than this share of the fastest smaller size."""


@dataclass
class JobResult:
    """The result of one job of a sweep.

    ``how``: measured, predicted, done (by an earlier run), implied, unsupported or not reached. ``reason``: why a job
    is unsupported.
    """

    job: Job
    record: Record | None
    how: str
    reason: str = ""


@dataclass
class Schedule:
    """The jobs of a sweep before anything runs: the results that are known, and launches of the other jobs."""

    known: list[JobResult] = field(default_factory=list)
    launches: list[list[Job]] = field(default_factory=list)

    @property
    def to_measure(self) -> list[list[Job]]:
        """The launches that measure; the others predict."""
        return [jobs for jobs in self.launches if jobs[0].config.mode == "measure"]

    def __add__(self, other: "Schedule") -> "Schedule":
        return Schedule(self.known + other.known, self.launches + other.launches)


@dataclass
class SearchResult:
    """The result of one search. ``tried``: size -> record; ``best``: the largest confirmed size."""

    job: Job
    tried: dict[int, Record] = field(default_factory=dict)
    best: int | None = None
    confirmation: Record | None = None
    gave_up: str | None = None

    @property
    def fits(self) -> int:
        """The largest size that trained, or is predicted to fit; 0 if none did."""
        return max((size for size, record in self.tried.items() if trains(record)), default=0)

    @property
    def fails(self) -> int | None:
        """The smallest size that ran out of memory, or is predicted not to fit safely; ``None`` if none did."""
        ended = ("ok", *OUT_OF_MEMORY)
        too_large = (size for size, record in self.tried.items() if record.status in ended and not trains(record))
        return min(too_large, default=None)

    def rate(self, size: int) -> float:
        """Return the tokens per second at a size that trained; without tokens, the samples per second; else 0."""
        summary = self.tried[size].summary
        return summary.get("tokens_per_second") or summary.get("samples_per_second") or 0.0

    def thrashes(self, size: int) -> bool:
        """Whether a size fits, but the allocator had to free and retry, or a smaller size is faster (``SLOWER``)."""
        if (record := self.tried[size]).status != "ok":
            return False
        rate = self.rate(size)
        smaller = [self.rate(less) for less, other in self.tried.items() if less < size and other.status == "ok"]
        return bool(record.summary.get("num_alloc_retries")) or rate < SLOWER * max(smaller, default=0.0)


def trains(record: Record) -> bool:
    """Whether a size trained or, in a prediction, fits: a size at the edge of the memory does not count."""
    return record.status == "ok" and record.summary.get("verdict", FITS) == FITS


class SweepObserver:
    """Callbacks of a running sweep. Several threads may call the methods, but only one at a time."""

    def began(self, to_run: Sequence[Sequence[Job]], known: Sequence[JobResult]) -> None: ...
    def waiting(self, text: str) -> None: ...
    def launched(self, jobs: Sequence[Job], gpu_ids: Sequence[str]) -> None: ...
    def finished(self, result: JobResult) -> None: ...


def is_complete(results: Iterable[JobResult]) -> bool:
    """Whether every job has a record with a final status, which another run would not change."""
    return all(result.record is not None and result.record.status in FINAL for result in results)
