"""The run folder and the sweep's: their file names, the record, and how they are written and read.

Every file is written whole or not at all (memlab/disk.py) and without secrets, so a folder can be read, copied and
published at any time. Only folders that are memlab's are written into (memlab/marker.py), and only files with the names
below are ever removed. The only module that knows a file name.
"""

import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from memlab import marker
from memlab.config import MISSING, completed, from_dict
from memlab.disk import write_whole
from memlab.errors import ConfigError, FolderError, RecordError
from memlab.json_file import read_json
from memlab.locks import hold, holder
from memlab.plan import LATER_GROUPS, SHAPE, Plan
from memlab.record_schema import (
    SPEED,
    Breakdown,
    Bytes,
    Count,
    Curve,
    Figure,
    Index,
    Name,
    Oom,
    OverRanks,
    Seconds,
    Steps,
    Summary,
    Timing,
)
from memlab.redaction import environment_secrets, redact, redact_file
from memlab.schema import Limits, Others, PlainOf, SchemaError, Together, check_of, required, shown

SCHEMA_VERSION = 1

STATUSES = ("ok", "gpu_oom", "host_oom", "timeout", "failed", "infra", "unsupported", "interrupted")
"""How a run can end. An out-of-memory is a result like any other; only the last four say that nothing was learned."""

ISOLATIONS = ("fresh", "shared")
"""Whether a point had a launch of its own, or was one of several."""

FINAL = ("ok", "gpu_oom", "host_oom", "unsupported")
"""Statuses that would come out the same again; the others are tried again when a sweep is resumed."""

PHASES = ("model_build", "engine_init", "forward", "backward", "optimizer_step")
"""The phases of a run. Those of the first step, where they differ, carry the prefix ``first_``."""

BEFORE_STEPS = ("model_build", "engine_init")

FIRST_STEP_PHASES = ("first_forward", "first_backward", "first_optimizer_step")

CUDA_ALLOCATOR = "cuda_caching_allocator"
"""``memory_source`` of a rank on a GPU: torch's own counters."""

LIVE_TENSORS = "live_tensors"
"""``memory_source`` of a rank on a CPU, where torch counts nothing: allocated is bytes of storages that are alive, seen
by a dispatch mode during the steps that are not timed; reserved is the process's resident set."""


PREDICTED = "predicted"
"""``memory_source`` of a rank that never ran: a replay of torch's allocator over a trace."""


SOURCES = ("measured", "predicted")


@dataclass
class Phase:
    """Torch's memory within one phase, over all its occurrences; ``end_allocated_bytes`` is that of the last one."""

    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes
    end_allocated_bytes: Bytes


@dataclass
class RankResult:
    """What one rank measured: the entries of ``Record.ranks``, and each rank's own file.

    Peaks are over the training steps, the first one included, begun with an emptied cache (or from process start, with
    ``measure.protocol=cold``); those of building the model and the engine are in ``phases``. ``None``: the device does
    not count that, or the rank ended before it was known.
    """

    rank: Index
    device: str  # cuda:0, cpu
    device_name: str
    memory_source: str  # CUDA_ALLOCATOR, LIVE_TENSORS or PREDICTED
    status: Annotated[str, Limits(choices=STATUSES)] = "ok"
    reason: str | None = None
    device_total_bytes: Bytes | None = None
    peak_allocated_bytes: Bytes | None = None
    peak_active_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    device_used_bytes: Bytes | None = None  # highest the driver said the whole device had given out
    process_used_bytes: Bytes | None = None  # highest the driver said this process had
    host_rss_bytes: Bytes | None = None  # at the end
    host_peak_bytes: Bytes | None = None
    host_pinned_bytes: Bytes | None = None  # peak of torch's pinned host allocator
    num_alloc_retries: Count | None = None
    num_ooms: Count | None = None
    phases: dict[str, Phase] = field(default_factory=dict)
    step_seconds: list[Seconds] = field(default_factory=list)  # the measured steps
    warmup_seconds: list[Seconds] = field(default_factory=list)  # the steps before them; the first is the first step
    losses: list[float | None] = field(default_factory=list)  # one for each step, warm-up included; None: not finite
    skipped_steps: Count | None = None  # optimizer steps that an overflow (fp16) skipped
    energy_joules: Figure | None = None  # of the device, over the measured steps
    parameters: Count | None = None  # of the whole model; trainable ones below
    trainable_parameters: Count | None = None
    model_flops_per_step: Figure | None = None  # of this rank, without recomputation
    unknown: dict[str, str] = field(default_factory=dict)  # figures that could not be told, each with the reason
    oom: Oom | None = None
    runtime: dict[str, Any] = field(default_factory=dict)  # versions that only torch knows; moved to Record.environment
    timing: dict[str, Seconds] = field(default_factory=dict)  # launch_s, build_s, init_s, train_s
    # What only a prediction has:
    same_as_rank: Index | None = None  # this rank was not traced; it is taken to be like that one
    peak_reserved_range_bytes: Annotated[list[Bytes], Limits(length=2)] | None = None
    # lowest and highest, over when side streams let memory go
    cold_peak_allocated_bytes: Bytes | None = None  # of a plain training: from process start, nothing given back before
    cold_peak_reserved_bytes: Bytes | None = None  # the first step
    fit_probability: Figure | None = None  # of the rank with the least room, from earlier errors (predict/odds.py)
    verdict: Name | None = None  # fits, edge or does_not_fit, on this rank
    breakdown: Breakdown | None = None
    curve: Curve | None = None
    work: dict[str, dict[str, Figure]] | None = None  # by phase: FLOPs, bytes, kernels of a step (predict/step_time.py)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Record:
    """``record.json``: one experiment, measured or predicted. Bytes are integers, times are seconds."""

    run_id: Name
    source: Annotated[str, Limits(choices=SOURCES)]
    status: Annotated[str, Limits(choices=STATUSES)]
    config: dict[str, Any]  # config.to_dict of a Config
    choices: dict[str, Name]
    fingerprint: Name
    reason: str | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    isolation: Annotated[str, Limits(choices=ISOLATIONS)] = "fresh"
    before_in_launch: list[Annotated[list[int], Limits(length=2)]] | None = None
    """(micro batch, tokens) of the points that the same launch ran before this one; ``None``: not known."""
    ranks: Annotated[list[dict[str, Any]], PlainOf(list[RankResult])] = field(default_factory=list)
    steps: Steps = field(default_factory=dict)
    summary: Annotated[Summary, Others(Figure | None | OverRanks), Together(SPEED)] = field(default_factory=dict)
    timing: Annotated[Timing, Others(Seconds | None)] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        return {"schema_version": values.pop("schema_version"), **values}

    @classmethod
    def from_json(cls, values: Any, where: str) -> "Record":
        """The one way in for a record: behind it, every value is of the type that is declared above.

        What was added to the schema after a record was written has its default. Raises :class:`RecordError`, naming
        ``where``, the key, and what is expected there, for anything but a record of this schema version.
        """
        if not isinstance(values, dict):
            raise RecordError(f"{where}: not a record (a JSON object is expected)")
        version = values.get("schema_version")
        if version != SCHEMA_VERSION:
            raise RecordError(f"{where}: schema version {shown(version)}; this memlab reads version {SCHEMA_VERSION}")
        values = {"before_in_launch": None, **values}
        missing = [f.name for f in fields(cls) if f.name not in values]
        if missing:
            raise RecordError(f"{where}: incomplete record, without {', '.join(missing)}")
        try:
            check_of(cls)(values)
            known = {f.name: values[f.name] for f in fields(cls)}
            known["config"] = _whole_config(values["config"])
            known["ranks"] = [_whole_rank(rank) for rank in values["ranks"]]
            later = LATER_GROUPS.keys() - values["config"].keys()
            known["choices"] = {**dict.fromkeys(later, "none"), **values["choices"]}
        except (SchemaError, ConfigError) as error:
            raise RecordError(f"{where}: damaged record: {error}") from error
        return cls(**known)


_KNOWN = frozenset(f.name for f in fields(RankResult))
_NOT_KNOWN = {
    name: value
    for name, value in asdict(RankResult(rank=0, device="", device_name="", memory_source="")).items()
    if name not in (*required(RankResult), "runtime")
}
"""What a rank reads as that was written before a figure was added to the schema."""


def _whole_rank(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a checked rank, with what it does not have yet and without what is not in the schema."""
    return _NOT_KNOWN | {name: value for name, value in values.items() if name in _KNOWN}


def _whole_config(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the defaults of keys that were added after it was written; its point is its own.

    Raises :class:`ConfigError`, or :class:`SchemaError` where the point is missing."""
    from_dict({name: _known(part) for name, part in values.items()}, "config.")
    for key in SHAPE:
        group, _, name = key.partition(".")
        if name not in values.get(group, ()):
            raise SchemaError("is missing.").within(f"config.{key}")
    return completed(values)


def _known(part: Any) -> Any:
    """A group without the values that nobody knows: an imported table may not say which model it is about."""
    return {key: value for key, value in part.items() if value != MISSING} if isinstance(part, dict) else part


_RANK_FILE = re.compile(r"rank\d+\.(json|memory_snapshot\.pickle)")
_LOG = re.compile(r"(rank\d+|launcher)\.log")
_TEMPORARY = re.compile(
    r"\.((record|plan|deepspeed|training_args|rank\d+)\.json|(rank\d+|launcher)\.log|(config|hydra|overrides)\.yaml"
    r"|\.launch)\.\w+\.tmp"
)
"""What a killed :func:`memlab.disk.replacing` leaves of the files of a run folder."""


class RunFolder:
    """One experiment's folder. The paths below are relative to it."""

    PLAN = "plan.json"
    DEEPSPEED = "deepspeed.json"
    TRAINING_ARGS = "training_args.json"
    RECORD = "record.json"
    LOGS = "logs"
    HYDRA = ".hydra"
    LOCK = ".lock"
    LAUNCH = ".launch"

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path).resolve()

    def __str__(self) -> str:
        return str(self.path)

    def rank_file(self, rank: int) -> Path:
        return self.path / f"rank{rank}.json"

    def rank_log(self, rank: int) -> Path:
        return self.path / self.LOGS / f"rank{rank}.log"

    def snapshot_file(self, rank: int) -> Path:
        """torch's memory history of a rank, for pytorch.org/memory_viz. A pickle: memlab writes it, never reads it."""
        return self.path / f"rank{rank}.memory_snapshot.pickle"

    @property
    def launcher_log(self) -> Path:
        return self.path / self.LOGS / "launcher.log"

    @property
    def logs(self) -> list[Path]:
        return self._named(_LOG, self.LOGS)

    def _named(self, names: re.Pattern, folder: str = "") -> list[Path]:
        """The files of the folder, or of one inside it, whose whole name matches."""
        return sorted(path for path in (self.path / folder).glob("*") if names.fullmatch(path.name))

    def check(self) -> None:
        """Raise :class:`FolderError` if the folder holds what is not memlab's."""
        marker.check(self.path, self._is_from_before_the_marker)

    def claim(self) -> None:
        """Make the folder, and mark it as memlab's. Raises :class:`FolderError` if it holds what is not memlab's."""
        marker.claim(self.path, self._is_from_before_the_marker)

    def _is_from_before_the_marker(self) -> bool:
        """Whether the record is one that memlab reads or, of a run that never ended, the plan is a whole plan."""
        if (self.path / self.RECORD).exists():
            with contextlib.suppress(RecordError):
                return bool(self.read_record())
            return False
        with contextlib.suppress(RecordError):
            return bool(self.read_plan())
        return False

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold this folder against other memlab processes. False: another one holds it."""
        self.claim()
        with hold(self.path / self.LOCK) as mine:
            yield mine

    def holder(self) -> str:
        """The memlab process that holds this folder, for a person."""
        return holder(self.path / self.LOCK)

    def keep_launch(self, token: str, port: int) -> None:
        """Note the launch that is about to start: what marks its processes, and where its ranks meet."""
        write_json(self.path / self.LAUNCH, {"token": token, "port": port})

    def kept_launch(self) -> tuple[str, int] | None:
        """Token and port of a launch that nobody has seen end."""
        with contextlib.suppress(RecordError, KeyError, TypeError, ValueError):
            values = read_json(self.path / self.LAUNCH)
            return str(values["token"]), int(values["port"])
        return None

    def forget_launch(self) -> None:
        """No process of the launch is left."""
        (self.path / self.LAUNCH).unlink(missing_ok=True)

    def save_hydra(self, texts: Mapping[str, str]) -> None:
        """Keep what Hydra composed, as Hydra itself does: ``config``, ``hydra`` and ``overrides``."""
        folder = self.path / self.HYDRA
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / f"{name}.yaml", redact(text).encode())

    def start(self, plan: Plan, command: list[str]) -> None:
        """Write what will run and remove what an earlier run left here."""
        left = [self._named(_TEMPORARY, folder) for folder in ("", self.LOGS, self.HYDRA)]
        for path in itertools.chain([self.path / self.RECORD], self._named(_RANK_FILE), self.logs, *left):
            path.unlink(missing_ok=True)
        (self.path / self.LOGS).mkdir(parents=True, exist_ok=True)
        self.redact()
        write_json(self.path / self.DEEPSPEED, plan.deepspeed)
        write_json(self.path / self.TRAINING_ARGS, plan.training_args)
        write_json(self.path / self.PLAN, {**plan.to_json(), "command": command})

    def redact(self) -> None:
        """Blank out secrets in what Hydra and the ranks wrote."""
        for path in [*(self.path / self.HYDRA).glob("*.yaml"), *self.logs]:
            redact_file(path)

    def read_plan(self) -> Plan:
        """Raises :class:`RecordError` when there is none, or none that can be read."""
        path = self.path / self.PLAN
        values = read_json(path)
        try:
            check_of(Plan)(values)
            from_dict(values["config"], "config.")
        except (SchemaError, ConfigError) as error:
            raise RecordError(f"{path}: damaged plan: {error}") from error
        return Plan(**{f.name: values[f.name] for f in fields(Plan)})

    def read_ranks(self, world_size: int) -> list[dict[str, Any]]:
        """What the ranks measured; a rank that wrote nothing, or nothing that can be read, is left out."""
        ranks = []
        for rank in range(world_size):
            with contextlib.suppress(RecordError, SchemaError):
                values = read_json(self.rank_file(rank))
                check_of(RankResult)(values)
                ranks.append(values)
        return ranks

    def finish(self, record: Record) -> None:
        """Write the record: from here on, this run is over. The logs, which may be long, are redacted after it."""
        write_json(self.path / self.RECORD, record.to_json())
        self.redact()

    def read_record(self) -> Record:
        """Raises :class:`RecordError` when there is none, or none that can be read."""
        path = self.path / self.RECORD
        return Record.from_json(read_json(path), str(path))


class SweepFolder:
    """The folder that holds the run folders of a sweep."""

    HYDRA = "multirun.yaml"
    TABLE = "table.csv"
    PAGE = "report.html"

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path).resolve()

    def claim(self) -> None:
        """Make the folder, and mark it as memlab's. Raises :class:`FolderError` if it holds what is not memlab's."""
        marker.claim(self.path, self._holds_runs)

    def claim_around_runs(self) -> None:
        """Mark the folder that a run's repeats lie in side by side. Raises :class:`FolderError` if it holds files."""
        marker.claim(self.path, lambda: all(path.is_dir() for path in self.path.iterdir()))

    def _holds_runs(self) -> bool:
        """Whether it is of a memlab that marked no sweeps, or of single runs: a folder in it is a run folder."""
        for path in self.path.iterdir():
            with contextlib.suppress(OSError, FolderError):
                if any(path.iterdir()):
                    RunFolder(path).check()
                    return True
        return False

    def save_hydra(self, text: str) -> None:
        """Keep what Hydra composed for the whole sweep."""
        write_whole(self.path / self.HYDRA, redact(text).encode())


# --- files ------------------------------------------------------------------------------------------------------------


def write_json(path: Path, values: Any) -> None:
    """Write ``values`` as JSON, whole or not at all. Secrets are blanked out."""
    text = json.dumps(_clean(values, environment_secrets()), indent=2, allow_nan=False) + "\n"
    write_whole(path, text.encode())


def _clean(values: Any, secrets: Sequence[str]) -> Any:
    """Texts without secrets. JSON has no NaN and no infinity: such a figure is not known.

    Before the texts become JSON: afterwards a secret may be escaped, and a number may look like one.
    """
    if isinstance(values, dict):
        return {_clean(key, secrets): _clean(value, secrets) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_clean(value, secrets) for value in values]
    if isinstance(values, str):
        return redact(values, secrets)
    return None if isinstance(values, float) and not math.isfinite(values) else values
