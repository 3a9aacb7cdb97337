"""A plan and the folder it belongs to: the unit that is run, skipped, or recorded without running."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from memlab.config import Config, from_dict
from memlab.errors import MemlabError, RecordError
from memlab.launch.deadman import end_marked, marked_by
from memlab.launch.environment import describe_environment, fingerprint
from memlab.launch.nodes import takes_sigterm
from memlab.launch.process import TERMINATE_S
from memlab.machine import Machine
from memlab.noise import doubts
from memlab.plan import Plan, engine_key, memory_key, subject_key
from memlab.record import FINAL, Record, RunFolder
from memlab.segments import remove_segments
from memlab.summary import slowest, summarise

IMPLIED = "implied by "
"""How the reason of a record begins that follows from another one; the run id of that one comes after it."""


OUT_OF_MEMORY = ("gpu_oom", "host_oom")
"""Statuses that larger jobs of the same configuration would end with as well: both kinds of memory grow with size."""


def is_implied(record: Record) -> bool:
    """Whether this out-of-memory follows from another one and was not seen itself."""
    return record.status in OUT_OF_MEMORY and (record.reason or "").startswith(IMPLIED)


@dataclass
class Job:
    plan: Plan
    folder: RunFolder
    prepare: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called before the plan is written: saves what composed it."""

    @cached_property
    def config(self) -> Config:
        return from_dict(self.plan.config)

    @property
    def size(self) -> int:
        """Tokens of a forward pass: what memory grows with."""
        return self.config.batch.micro * self.config.seq_len.tokens

    @cached_property
    def engine_key(self) -> str:
        return engine_key(self.config)

    @cached_property
    def memory_key(self) -> str:
        return memory_key(self.config)

    @cached_property
    def subject_key(self) -> str:
        return subject_key(self.config)

    @property
    def gpus(self) -> int:
        """How many GPUs of this machine it takes."""
        return self.plan.ranks_per_node if self.config.hardware.device == "cuda" else 0

    def is_alone(self, side_by_side: str) -> bool:
        """Whether launches beside it would change its speed: an offloaded optimizer wants the whole host.

        Nobody here knows of other nodes' GPUs, so a launch on several nodes is always alone.
        """
        if self.config.hardware.device == "cpu" or self.plan.is_multi_node:
            return True
        if side_by_side == "auto":
            return (self.config.offload.optimizer, self.config.offload.param) != ("none", "none")
        return side_by_side == "never"

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold the job's folder against other memlab processes. False: another one holds it.

        First ends what a killed memlab left running there: it would write the same files. Raises :class:`MemlabError`
        where that cannot be killed.
        """
        with self.folder.lock() as mine:
            if mine and (left := self.folder.kept_launch()):
                self._end_orphans(*left)
            yield mine

    def _end_orphans(self, token: str, port: int) -> None:
        if survivors := end_marked(token, TERMINATE_S if takes_sigterm(self.plan) else 0.0):
            raise MemlabError(
                f"{self.folder}: processes {survivors} of an earlier launch cannot be killed and write there still; "
                "choose another name, or restart the machine."
            )
        if not any(marked_by("MASTER_PORT", str(port))):  # another launch may have been given the same port since
            remove_segments(port)
        self.folder.forget_launch()

    def start(self, command: list[str]) -> None:
        self.folder.claim()
        self.prepare()
        self.folder.start(self.plan, command)

    def finished(self, machine: Machine, also_implied: bool = True) -> Record | None:
        """The record of an earlier run that would come out the same again: same fingerprint, and a final status.

        Whether a job is supported is asked anew: a package, or a list of nodes, may be there by now. ``also_implied``:
        one that was recorded without running counts too.
        """
        try:
            record = self.folder.read_record()
        except RecordError:
            return None
        known = record.status in FINAL and record.status != "unsupported"
        same = known and record.fingerprint == fingerprint(self.plan, machine)
        return record if same and (also_implied or not is_implied(record)) else None

    def record_without_running(self, machine: Machine, status: str, reason: str) -> Record:
        """For what is known without a run: meaningless combinations, and sizes beyond one that did not fit."""
        self.start(command=[])
        record = replace(self.new_record(machine, "fresh"), status=status, reason=reason)
        self.folder.finish(record)
        return record

    def new_record(self, machine: Machine, isolation: str) -> Record:
        return Record(
            run_id=self.plan.run_id,
            source="measured",
            status="failed",
            config=self.plan.config,
            choices=self.plan.choices,
            fingerprint=fingerprint(self.plan, machine),
            environment=describe_environment(self.plan, machine),
            isolation=isolation,
        )

    def measured_record(
        self, machine: Machine, isolation: str, ranks: Sequence[dict[str, Any]], total_s: float
    ) -> Record:
        """The record with what the ranks measured. ``total_s`` is the wall clock that this job took, in seconds."""
        config = self.config
        runtime = next((rank["runtime"] for rank in ranks if rank["runtime"]), {})
        ranks = [{key: value for key, value in rank.items() if key != "runtime"} for rank in ranks]
        names = dict.fromkeys(name for rank in ranks for name in rank["timing"])
        record = self.new_record(machine, isolation)
        seconds = slowest(ranks, "step_seconds")
        return replace(
            record,
            environment={**record.environment, **runtime},
            ranks=ranks,
            steps={
                "warmup": config.measure.warmup,
                "measured": config.measure.steps,
                "repeat": config.measure.repeat,
                "seconds": seconds,
                "warmup_seconds": slowest(ranks, "warmup_seconds"),
                "doubts": doubts(seconds),
            },
            summary=summarise(config, ranks, total_s),
            timing={name: max(rank["timing"].get(name, 0.0) for rank in ranks) for name in names}
            | {"total_s": total_s},
        )
