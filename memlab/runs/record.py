"""Run folders and sweep folders: their file names, the record, and how files are written and read.

Every file is written whole or not at all (memlab/files/disk.py) and without secrets, so a folder can be read, copied
and published at any time. memlab writes only into its own folders (memlab/runs/marker.py), and removes only files with
the names below. No other module contains these file names.
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

from memlab.core.config import MISSING, Config, from_dict, without
from memlab.core.errors import ConfigError, FolderError, RecordError
from memlab.core.plan import LATER_GROUPS, SHAPE, Plan
from memlab.core.record_schema import (
    SPEED,
    Breakdown,
    Bytes,
    Command,
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
from memlab.core.schema import Limits, Others, PlainOf, SchemaError, Together, check_of, required, shown
from memlab.files.disk import write_whole
from memlab.files.json_file import read_json
from memlab.files.redaction import environment_secrets, redact, redact_file
from memlab.runs import marker
from memlab.system.locks import hold, holder

SCHEMA_VERSION = 1

STATUSES = ("ok", "gpu_oom", "host_oom", "timeout", "failed", "infra", "unsupported", "interrupted")
"""How a run can end. An out-of-memory is a result too; only the last four statuses mean that the run has no result."""

ISOLATIONS = ("fresh", "shared")
"""Whether a point had its own launch, or shared a launch with other points."""

FINAL = ("ok", "gpu_oom", "host_oom", "unsupported")
"""Statuses that would be the same in a new run. A resumed sweep runs points with other statuses again."""

PHASES = ("model_build", "engine_init", "forward", "backward", "optimizer_step")
"""The phases of a run. Forward, backward and optimizer step of the first step have the prefix ``first_``."""

BEFORE_STEPS = ("model_build", "engine_init")

FIRST_STEP_PHASES = ("first_forward", "first_backward", "first_optimizer_step")

COMMAND_PHASES = (
    *("load", "model_build", "engine_init", "resume", *FIRST_STEP_PHASES, "forward", "backward", "optimizer_step"),
    *("first_generate", "generate", "first_evaluate", "evaluate", "first_save", "save"),
)
"""The phases of a command of the user's own, in the order of display."""

CUDA_ALLOCATOR = "cuda_caching_allocator"
"""``memory_source`` of a rank on a GPU: torch's own counters."""

HOST = "host"
"""``memory_source`` of a rank of a command on a machine without GPUs: only host memory is known."""

LIVE_TENSORS = "live_tensors"
"""``memory_source`` of a rank on a CPU, where torch has no counters. Allocated: bytes of live storages, counted by a
dispatch mode during the untimed steps. Reserved: the resident set of the process."""


PREDICTED = "predicted"
"""``memory_source`` of a rank that never ran: a replay of torch's allocator over a trace."""


SOURCES = ("measured", "predicted")


@dataclass
class Phase:
    """Torch's memory in one phase: peaks over all its occurrences, and bytes allocated at the end of the last one."""

    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes
    end_allocated_bytes: Bytes


@dataclass
class RankResult:
    """Figures of one rank: an entry of ``Record.ranks``, and the content of the rank's file.

    Peaks cover the training steps, including the first one; the allocator's cache is emptied before them. With
    ``measure.protocol=cold``, peaks cover everything from process start. Peaks while the model and the engine are built
    are in ``phases``. ``None``: the device does not count this figure, or the rank ended before it was known.
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
    device_used_bytes: Bytes | None = None  # most bytes in use on the whole device, as the driver reports
    process_used_bytes: Bytes | None = None  # most bytes in use by this process, as the driver reports
    host_rss_bytes: Bytes | None = None  # at the end of the run
    host_peak_bytes: Bytes | None = None
    host_pinned_bytes: Bytes | None = None  # peak of torch's pinned host allocator
    num_alloc_retries: Count | None = None
    num_ooms: Count | None = None
    phases: dict[str, Phase] = field(default_factory=dict)
    step_seconds: list[Seconds] = field(default_factory=list)  # the measured steps
    warmup_seconds: list[Seconds] = field(default_factory=list)  # the warm-up steps, from the very first step on
    losses: list[float | None] = field(default_factory=list)  # one for each step, warm-up included; None: not finite
    skipped_steps: Count | None = None  # optimizer steps that an overflow (fp16) skipped
    energy_joules: Figure | None = None  # of the device, over the measured steps
    parameters: Count | None = None  # of the whole model
    trainable_parameters: Count | None = None
    model_flops_per_step: Figure | None = None  # of this rank, without recomputation
    unknown: dict[str, str] = field(default_factory=dict)  # figures that could not be computed -> the reason
    oom: Oom | None = None
    runtime: dict[str, Any] = field(default_factory=dict)  # versions that only torch knows; moved to Record.environment
    timing: dict[str, Seconds] = field(default_factory=dict)  # launch_s, build_s, init_s, train_s
    # The fields below are for predictions only.
    same_as_rank: Index | None = None  # this rank was not traced; its figures are copied from this traced rank
    peak_reserved_range_bytes: Annotated[list[Bytes], Limits(length=2)] | None = None
    # lowest and highest peak; it depends on the release delay of blocks that side streams use
    # Peaks of a plain training: from process start, without emptying the cache before the first step.
    cold_peak_allocated_bytes: Bytes | None = None
    cold_peak_reserved_bytes: Bytes | None = None
    fit_probability: Figure | None = None  # of the rank with the least free memory, from past errors (predict/odds.py)
    verdict: Name | None = None  # fits, edge or does_not_fit, on this rank
    breakdown: Breakdown | None = None
    curve: Curve | None = None
    attached: dict[str, Any] | None = None  # what was found in a rank of training=command (memlab/attach/__init__.py)
    work: dict[str, dict[str, Figure]] | None = None  # phase -> FLOPs, bytes, kernels of a step (predict/step_time.py)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Record:
    """``record.json``: one experiment, measured or predicted. Bytes are integers, times are seconds."""

    run_id: Name
    source: Annotated[str, Limits(choices=SOURCES)]
    status: Annotated[str, Limits(choices=STATUSES)]
    config: Annotated[Config, PlainOf(dict[str, Any])]
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
    unknown_config: list[Name] = field(default_factory=list)
    """Groups and dotted keys of ``config`` that could not be found out. The file lacks them; here they are defaults."""
    command: Command | None = None  # of a run with training=command
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["config"] = without(values["config"], self.unknown_config)
        return {"schema_version": values.pop("schema_version"), **values}

    @classmethod
    def from_json(cls, values: Any, where: str) -> "Record":
        """Check plain values and make a record of them. Every value then has the type that is declared above.

        Keys that are newer than the record get their defaults. Raises :class:`RecordError`, which names ``where``, the
        key and the expected value, for anything but a record of this schema version.
        """
        if not isinstance(values, dict):
            raise RecordError(f"{where}: not a record (a JSON object is expected)")
        version = values.get("schema_version")
        if version != SCHEMA_VERSION:
            raise RecordError(f"{where}: schema version {shown(version)}; this memlab reads version {SCHEMA_VERSION}")
        values = {"before_in_launch": None, "unknown_config": [], "command": None, **values}
        missing = [f.name for f in fields(cls) if f.name not in values]
        if missing:
            raise RecordError(f"{where}: incomplete record, without {', '.join(missing)}")
        try:
            check_of(cls)(values)
            known = {f.name: values[f.name] for f in fields(cls)}
            known["config"] = _config_of(values["config"], values["unknown_config"])
            known["ranks"] = [_whole_rank(rank) for rank in values["ranks"]]
            later = LATER_GROUPS.keys() - values["config"].keys() - set(values["unknown_config"])
            known["choices"] = {group: LATER_GROUPS[group] for group in later} | values["choices"]
        except (SchemaError, ConfigError) as error:
            raise RecordError(f"{where}: damaged record: {error}") from error
        return cls(**known)


_KNOWN = frozenset(f.name for f in fields(RankResult))
_NOT_KNOWN = {
    name: value
    for name, value in asdict(RankResult(rank=0, device="", device_name="", memory_source="")).items()
    if name not in (*required(RankResult), "runtime")
}
"""Optional figures of a rank -> defaults, for records that are older than a figure."""


def _whole_rank(values: dict[str, Any]) -> dict[str, Any]:
    """Add defaults to the values of a checked rank, and drop keys that are not in the schema."""
    return _NOT_KNOWN | {name: value for name, value in values.items() if name in _KNOWN}


def _config_of(values: dict[str, Any], unknown: Sequence[str]) -> Config:
    """Check and decode a configuration. Newer and ``unknown`` keys get defaults; those of the shape are never newer.

    Raises :class:`ConfigError` for a bad value, :class:`SchemaError` if a key of the shape is missing.
    """
    config = from_dict({name: _known(part) for name, part in values.items()}, "config.")
    for key in SHAPE:
        group, _, name = key.partition(".")
        if name not in values.get(group, ()) and not {key, group} & set(unknown):
            raise SchemaError("is missing.").within(f"config.{key}")
    return config


def _known(part: Any) -> Any:
    """Drop unknown (MISSING) values from a group: an imported table may not name the model."""
    return {key: value for key, value in part.items() if value != MISSING} if isinstance(part, dict) else part


_RANK_FILE = re.compile(r"rank\d+\.(json|steps\.jsonl|memory_snapshot\.pickle)")
_RANK_JSON = re.compile(r"rank\d+\.json")
_LOG = re.compile(r"(rank\d+|launcher)\.log")
_TEMPORARY = re.compile(
    r"\.((record|plan|deepspeed|training_args|rank\d+)\.json|(rank\d+|launcher)\.log|(config|hydra|overrides)\.yaml"
    r"|\.launch)\.\w+\.tmp"
)
"""Temporary files that :func:`memlab.files.disk.replacing` leaves in a run folder if it is killed."""


class RunFolder:
    """Folder of one experiment. The constants are names inside the folder."""

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

    def step_rows(self, rank: int) -> Path:
        """Return the path of the rows that a rank of a command wrote, a line for each optimizer step."""
        return self.path / f"rank{rank}.steps.jsonl"

    def rank_log(self, rank: int) -> Path:
        return self.path / self.LOGS / f"rank{rank}.log"

    def snapshot_file(self, rank: int) -> Path:
        """Return the path of a rank's memory history from torch, for pytorch.org/memory_viz.

        The file is a pickle: memlab writes it, never reads it.
        """
        return self.path / f"rank{rank}.memory_snapshot.pickle"

    @property
    def launcher_log(self) -> Path:
        return self.path / self.LOGS / "launcher.log"

    @property
    def logs(self) -> list[Path]:
        return self._named(_LOG, self.LOGS)

    def _named(self, names: re.Pattern, folder: str = "") -> list[Path]:
        """List the files of the run folder, or of a folder inside it, whose whole name matches."""
        return sorted(path for path in (self.path / folder).glob("*") if names.fullmatch(path.name))

    def check(self) -> None:
        """Raise :class:`FolderError` if the folder holds files that are not memlab's."""
        marker.check(self.path, self._is_from_before_the_marker)

    def claim(self) -> None:
        """Make the folder and mark it as memlab's. Raises :class:`FolderError` if it holds foreign files."""
        marker.claim(self.path, self._is_from_before_the_marker)

    def _is_from_before_the_marker(self) -> bool:
        """Whether the folder holds a valid record or, if it has no record, a valid plan (of a run that never ended)."""
        if (self.path / self.RECORD).exists():
            with contextlib.suppress(RecordError):
                return bool(self.read_record())
            return False
        with contextlib.suppress(RecordError):
            return bool(self.read_plan())
        return False

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Lock this folder against other memlab processes. Yields False if another process holds the lock."""
        self.claim()
        with hold(self.path / self.LOCK) as mine:
            yield mine

    def holder(self) -> str:
        """Describe the memlab process that holds the lock of this folder."""
        return holder(self.path / self.LOCK)

    def keep_launch(self, token: str, port: int) -> None:
        """Note the launch that is about to start: the token that marks its processes, and the port of its ranks."""
        write_json(self.path / self.LAUNCH, {"token": token, "port": port})

    def kept_launch(self) -> tuple[str, int] | None:
        """Return token and port of a launch that started here and was not seen to end; ``None`` if there is none."""
        with contextlib.suppress(RecordError, KeyError, TypeError, ValueError):
            values = read_json(self.path / self.LAUNCH)
            return str(values["token"]), int(values["port"])
        return None

    def forget_launch(self) -> None:
        """Remove the note of the launch, since no process of it is left."""
        (self.path / self.LAUNCH).unlink(missing_ok=True)

    def save_hydra(self, texts: Mapping[str, str]) -> None:
        """Save what Hydra composed, in Hydra's own files: ``config``, ``hydra`` and ``overrides``."""
        folder = self.path / self.HYDRA
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / f"{name}.yaml", redact(text).encode())

    def start(self, plan: Plan, command: list[str]) -> None:
        """Remove the files of an earlier run, then write the plan and the files that the ranks read."""
        left = [self._named(_TEMPORARY, folder) for folder in ("", self.LOGS, self.HYDRA)]
        for path in itertools.chain([self.path / self.RECORD], self._named(_RANK_FILE), self.logs, *left):
            path.unlink(missing_ok=True)
        (self.path / self.LOGS).mkdir(parents=True, exist_ok=True)
        self.redact()
        self.write_inputs(plan.deepspeed, plan.training_args)
        write_json(self.path / self.PLAN, {**plan.to_json(), "command": command})

    def write_inputs(self, deepspeed: Mapping[str, Any], training_args: Mapping[str, Any]) -> None:
        """Write the DeepSpeed JSON and the training arguments; an empty one, which is not known, has no file."""
        for name, values in ((self.DEEPSPEED, deepspeed), (self.TRAINING_ARGS, training_args)):
            if values:
                write_json(self.path / name, values)
            else:
                (self.path / name).unlink(missing_ok=True)

    def redact(self) -> None:
        """Blank out secrets in the files of Hydra and in the logs."""
        for path in [*(self.path / self.HYDRA).glob("*.yaml"), *self.logs]:
            redact_file(path)

    def read_plan(self) -> Plan:
        """Read the plan. Raises :class:`RecordError` if it is absent or damaged."""
        path = self.path / self.PLAN
        values = read_json(path)
        try:
            check_of(Plan)(values)
            return Plan.from_json(values)
        except (SchemaError, ConfigError) as error:
            raise RecordError(f"{path}: damaged plan: {error}") from error

    def read_ranks(self, world_size: int) -> list[dict[str, Any]]:
        """Read the files of the ranks. A rank without a readable, valid file is left out."""
        ranks = []
        for rank in range(world_size):
            with contextlib.suppress(RecordError, SchemaError):
                values = read_json(self.rank_file(rank))
                check_of(RankResult)(values)
                ranks.append(values)
        return ranks

    def read_attached_ranks(self) -> list[dict[str, Any]]:
        """Read the files of the ranks of a command, however many there are, lowest rank first."""
        numbers = [int(path.stem.removeprefix("rank")) for path in self._named(_RANK_JSON)]
        ranks = self.read_ranks(max(numbers, default=-1) + 1)
        return [_whole_rank(rank) for rank in ranks if rank.get("attached") is not None]

    def finish(self, record: Record) -> None:
        """Write the record, which marks the run as ended, then redact the logs, which may be long."""
        write_json(self.path / self.RECORD, record.to_json())
        self.redact()

    def read_record(self) -> Record:
        """Read the record. Raises :class:`RecordError` if it is absent or damaged."""
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
        """Make the folder and mark it as memlab's. Raises :class:`FolderError` if it holds foreign files."""
        marker.claim(self.path, self._holds_runs)

    def claim_around_runs(self) -> None:
        """Mark the folder that holds the folders of a run's repeats. Raises :class:`FolderError` if it holds files."""
        marker.claim(self.path, lambda: all(path.is_dir() for path in self.path.iterdir()))

    def _holds_runs(self) -> bool:
        """Whether a folder inside is a run folder: single runs, or an old memlab without sweep markers, made it."""
        for path in self.path.iterdir():
            with contextlib.suppress(OSError, FolderError):
                if any(path.iterdir()):
                    RunFolder(path).check()
                    return True
        return False

    def save_hydra(self, text: str) -> None:
        """Save what Hydra composed for the whole sweep."""
        write_whole(self.path / self.HYDRA, redact(text).encode())


# --- files ------------------------------------------------------------------------------------------------------------


def write_json(path: Path, values: Any) -> None:
    """Write ``values`` as JSON, whole or not at all. Secrets are blanked out."""
    text = json.dumps(_clean(values, environment_secrets()), indent=2, allow_nan=False) + "\n"
    write_whole(path, text.encode())


def _clean(values: Any, secrets: Sequence[str]) -> Any:
    """Blank out secrets in all texts, and replace NaN and infinity, which JSON lacks, by ``None``.

    Secrets are removed before the conversion to JSON: in JSON text, a secret may be escaped, and a number may look like
    a secret.
    """
    if isinstance(values, dict):
        return {_clean(key, secrets): _clean(value, secrets) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_clean(value, secrets) for value in values]
    if isinstance(values, str):
        return redact(values, secrets)
    return None if isinstance(values, float) and not math.isfinite(values) else values
