"""Run folders and sweep folders: their file names, and how their files are written and read.

Every file is written whole or not at all (memlab/files/disk.py) and without secrets, so a folder can be read, copied
and published at any time. memlab writes only into its own folders (memlab/runs/marker.py), and removes only files with
the names below. No other module contains these file names.
"""

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memlab.core.errors import FolderError, RecordError
from memlab.core.plan import Plan
from memlab.core.record import WITHOUT_RESULT, Record
from memlab.core.schema import SchemaError
from memlab.files.disk import explained, write_whole
from memlab.files.json_file import read_json, write_json
from memlab.files.redact_file import redact_file
from memlab.files.redaction import redact
from memlab.files.regular_file import LARGEST, clear, read_regular
from memlab.runs import marker
from memlab.runs.decode import decode_plan, decode_rank, decode_record, whole_rank
from memlab.system.deadman import remove_folder
from memlab.system.locks import hold, holder

_RANK_FILE = re.compile(
    r"rank\d+\.(json|steps\.jsonl|trace\.json|memory_snapshot\.pickle|memory_marks\.json|out_of_memory\.(pickle|json)"
    r"|profile\.json(\.gz|\.part|\.tmp)?|operators\.json)"
)
_SIMULATED = re.compile(r"rank\d{1,5}\.(json|steps\.jsonl|trace\.json)")
_LOG = re.compile(r"(rank\d+|launcher)\.log")
_TEMPORARY = re.compile(
    rf"\.((record|plan|deepspeed|training_args)\.json|{_RANK_FILE.pattern}|{_LOG.pattern}|(config|hydra|overrides)\.yaml"
    r"|\.launch)\.\w+\.tmp"
)
"""Temporary files that memlab, or a rank, leaves in a run folder if it is killed while it writes."""


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

    def ranks_with_rows(self) -> list[int]:
        """List the ranks whose steps :meth:`step_rows` holds, lowest first."""
        return self._ranks_with(r"steps\.jsonl")

    def rank_log(self, rank: int) -> Path:
        return self.path / self.LOGS / f"rank{rank}.log"

    def snapshot_file(self, rank: int) -> Path:
        """Return the path of a rank's memory history from torch, for memlab explain and pytorch.org/memory_viz."""
        return self.path / f"rank{rank}.memory_snapshot.pickle"

    def ranks_with_history(self) -> list[int]:
        """List the ranks that left a memory history or a part of it, lowest first."""
        return self._ranks_with(r"memory_(snapshot\.pickle|marks\.json)")

    def ranks_out_of_memory(self) -> list[int]:
        """List the ranks that left a snapshot of an out-of-memory without a history, lowest first."""
        return self._ranks_with(r"out_of_memory\.(pickle|json)")

    def memory_marks(self, rank: int) -> Path:
        """Return the path of what memlab's meters noted beside a rank's memory history."""
        return self.path / f"rank{rank}.memory_marks.json"

    def out_of_memory_snapshot(self, rank: int) -> Path:
        """Return the path of torch's snapshot of the last out-of-memory of a rank, for pytorch.org/memory_viz, too."""
        return self.path / f"rank{rank}.out_of_memory.pickle"

    def out_of_memory_marks(self, rank: int) -> Path:
        """Return the path of what memlab noted beside the snapshot of a rank's last out-of-memory."""
        return self.path / f"rank{rank}.out_of_memory.json"

    def profile_file(self, rank: int) -> Path:
        """Return the path of a rank's profiled steps from torch: a Chrome trace, for Perfetto and chrome://tracing."""
        return self.path / f"rank{rank}.profile.json.gz"

    def operators_file(self, rank: int) -> Path:
        """Return the path of the operators of a rank's profiled steps (runs/operator_profile.py)."""
        return self.path / f"rank{rank}.operators.json"

    def owns(self, name: str) -> bool:
        """Whether a run left a file of this name in the folder."""
        names = (self.PLAN, self.DEEPSPEED, self.TRAINING_ARGS, self.RECORD)
        has_run = any((self.path / own).exists() for own in (self.PLAN, self.RECORD))
        return has_run and (name in names or bool(_RANK_FILE.fullmatch(name)))

    @property
    def launcher_log(self) -> Path:
        return self.path / self.LOGS / "launcher.log"

    @property
    def logs(self) -> list[Path]:
        return self._named(_LOG, self.LOGS)

    def _ranks_with(self, suffixes: str) -> list[int]:
        """List the ranks that have a file with one of the suffixes, a regular expression, lowest first."""
        files = self._named(re.compile(rf"rank\d+\.{suffixes}"))
        return sorted({int(path.name.removeprefix("rank").partition(".")[0]) for path in files})

    def _named(self, names: re.Pattern, folder: str = "") -> list[Path]:
        """List the files of the run folder, or of a folder inside it, whose whole name matches."""
        place = self.path / folder
        return sorted(path for path in place.glob("*") if names.fullmatch(path.name) and not place.is_symlink())

    def own_folder(self, name: str) -> Path:
        """Make a folder inside the run folder, in place of a link or a file that a script may have left there."""
        folder = self.path / name
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def empty_folder(self, name: str) -> Path:
        """Make an empty folder inside the run folder, in place of whatever a script has left there."""
        remove_folder(self.own_folder(name))
        return self.own_folder(name)

    def refuse_foreign_files(self) -> None:
        """Raise :class:`FolderError` if the folder holds files that are not memlab's."""
        marker.refuse_foreign_files(self.path, self._is_from_before_the_marker)

    def claim(self) -> None:
        """Make the folder and mark it as memlab's. Raises :class:`FolderError` if it holds foreign files."""
        marker.claim(self.path, self._is_from_before_the_marker)

    def _is_from_before_the_marker(self) -> bool:
        """Whether the folder holds a valid record or, if it has no record, a valid plan (of a run that never ended)."""
        read = self.read_record if (self.path / self.RECORD).exists() else self.read_plan
        with contextlib.suppress(RecordError):
            return bool(read())
        return False

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Lock this folder against other memlab processes. Yields False if another process holds the lock.

        Raises :class:`FolderError`.
        """
        self.claim()
        with contextlib.ExitStack() as held:
            with explained(FolderError):
                mine = held.enter_context(hold(self.path / self.LOCK))
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
        clear(self.path / self.LAUNCH)

    def save_hydra(self, texts: Mapping[str, str]) -> None:
        """Save what Hydra composed, in Hydra's own files: ``config``, ``hydra`` and ``overrides``."""
        folder = self.own_folder(self.HYDRA)
        for name, text in texts.items():
            write_whole(folder / f"{name}.yaml", redact(text).encode())

    def start(self, plan: Plan, command: list[str]) -> None:
        """Remove the files of an earlier run, then write the plan and the files that the ranks read."""
        left = [self._named(_TEMPORARY, folder) for folder in ("", self.LOGS, self.HYDRA)]
        for path in itertools.chain([self.path / self.RECORD], self._named(_RANK_FILE), self.logs, *left):
            clear(path)
        self.own_folder(self.LOGS)
        self.redact()
        self.write_inputs(plan.deepspeed, plan.training_args)
        write_json(self.path / self.PLAN, {**plan.to_json(), "command": command})

    def write_inputs(self, deepspeed: Mapping[str, Any], training_args: Mapping[str, Any]) -> None:
        """Write the DeepSpeed JSON and the training arguments; an empty one, which is not known, has no file."""
        for name, values in ((self.DEEPSPEED, deepspeed), (self.TRAINING_ARGS, training_args)):
            if values:
                write_json(self.path / name, values)
            else:
                clear(self.path / name)

    def redact(self) -> None:
        """Blank out secrets in the files of Hydra and in the logs. What is not a regular file is left alone."""
        for path in [*(self.path / self.HYDRA).glob("*.yaml"), *self.logs]:
            with contextlib.suppress(OSError):
                redact_file(path)

    def read_plan(self) -> Plan:
        """Read the plan. Raises :class:`RecordError` if it is absent or damaged."""
        path = self.path / self.PLAN
        return decode_plan(read_json(path), str(path))

    def earlier(self) -> dict[str, Any]:
        """Return the plan of an earlier run here, else its record, as plain values; empty if neither can be read."""
        for name in (self.PLAN, self.RECORD):
            with contextlib.suppress(RecordError):
                if isinstance(values := read_json(self.path / name), dict):
                    return values
        return {}

    def read_ranks(self, world_size: int) -> list[dict[str, Any]]:
        """Read the files of the ranks. A rank without a readable, valid file is left out."""
        return list(self._read_ranks(range(world_size)))

    def _read_ranks(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        for rank in numbers:
            with contextlib.suppress(RecordError, SchemaError):
                yield whole_rank(decode_rank(read_json(self.rank_file(rank))))

    def read_attached_ranks(self) -> list[dict[str, Any]]:
        """Read the files of the ranks of a command, however many there are, lowest rank first."""
        return [rank for rank in self._read_ranks(self._ranks_with("json")) if rank["attached"] is not None]

    def write_ranks(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Write the files of the ranks of a command again, without secrets."""
        for rank in ranks:
            write_json(self.rank_file(rank["rank"]), rank)

    def copy_ranks(self, other: "RunFolder") -> None:
        """Copy the files of the ranks of a command, and the logs, from another run folder."""
        for path in [*other._named(_RANK_FILE), *other.logs]:
            target = self.path / path.relative_to(other.path)
            target.parent.mkdir(exist_ok=True)
            write_whole(target, read_regular(path))

    def drop_simulated(self) -> None:
        """Remove the files of ranks that an earlier simulation left."""
        for path in self._named(_SIMULATED):
            clear(path)

    def take_simulated(self, handed_over: Path) -> None:
        """Copy the files of simulated ranks from the folder that their command can write to.

        Other files stay there, and so does what is not a regular file or, with those before it, larger than
        :data:`LARGEST`.
        """
        left = LARGEST
        for path in RunFolder(handed_over)._named(_SIMULATED):
            with contextlib.suppress(OSError):
                content = read_regular(path, left)
                left -= len(content)
                write_whole(self.path / path.name, content)

    def write_step_rows(self, rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """Write the rows of the steps of a command, rank -> rows, each file whole or not at all."""
        for rank, steps in rows.items():
            write_whole(self.step_rows(rank), "".join(f"{json.dumps(step)}\n" for step in steps).encode())

    def holds_result(self) -> bool:
        """Whether a run ended here with a result, which another run must not replace unasked. A record that cannot be
        read counts as one."""
        with contextlib.suppress(RecordError):
            return (self.path / self.RECORD).exists() and self.read_record().status not in WITHOUT_RESULT
        return True

    def finish(self, record: Record) -> None:
        """Write the record, which marks the run as ended, then redact the logs, which may be long."""
        if (self.path / self.RECORD).is_dir():
            clear(self.path / self.RECORD)
        write_json(self.path / self.RECORD, record.to_json())
        self.redact()

    def read_record(self) -> Record:
        """Read the record. Raises :class:`RecordError` if it is absent or damaged."""
        path = self.path / self.RECORD
        return decode_record(read_json(path), str(path))


class SweepFolder:
    """The folder that holds the run folders of a sweep."""

    MULTIRUN = "multirun.yaml"
    HYDRA = (MULTIRUN, "optimization_results.yaml")  # of sweepers: the second is Optuna's
    TABLE = "table.csv"
    PAGE = "report.html"

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path).resolve()

    def claim(self) -> None:
        """Make the folder and mark it as memlab's. Raises :class:`FolderError` if it holds foreign files."""
        marker.claim(self.path, self._holds_runs)

    def claim_around_runs(self) -> None:
        """Mark the folder that holds the folders of runs. Raises :class:`FolderError` if it holds files of anybody but
        Hydra's sweepers."""
        marker.claim(self.path, lambda: all(path.is_dir() or path.name in self.HYDRA for path in self.path.iterdir()))

    def _holds_runs(self) -> bool:
        """Whether a folder inside is a run folder: single runs, or an old memlab without sweep markers, made it."""
        for path in self.path.iterdir():
            with contextlib.suppress(OSError, FolderError):
                if any(path.iterdir()):
                    RunFolder(path).refuse_foreign_files()
                    return True
        return False

    def save_hydra(self, text: str) -> None:
        """Save what Hydra composed for the whole sweep."""
        write_whole(self.path / self.MULTIRUN, redact(text).encode())
