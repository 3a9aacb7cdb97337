"""Import of the CSV files of the public study gpjt/fine-tune-2024-04 as records.

One rank appended one line: the axis value (sequence length or batch size), active and reserved memory in MiB for every
GPU (only the rank's own pair is filled), then iterations per second. ``N, OOM`` means that N did not fit. The files do
not say how they were measured: the configuration comes from the file name or from the caller.

"active" is torch's ``active_bytes.all.peak``; allocated was not measured. Peaks were never reset after initialisation.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from memlab.core.config import Config
from memlab.core.errors import MemlabError
from memlab.core.record import Record
from memlab.core.sizes import MIB
from memlab.files.conf_files import config_of
from memlab.files.disk import explained
from memlab.importers.csv_table import imported_rank, imported_record

AXES = {"seq_len": "seq_len.tokens", "batch": "batch.micro"}

TIMED_STEPS = 28
"""The study divides 29 by the time of 28 steps (from the start of step 2 to the start of step 30)."""

PARAMETERS = {"llama3_8b": 8_030_261_248, "qwen15_05b": 463_987_712}

ENVIRONMENT = {"torch": "2.2.2", "transformers": "4.40.0", "accelerate": "0.29.3", "deepspeed": "0.14.2"}
"""Versions in the study's requirements.txt."""

COMMON = {"precision": "fp16", "attention": "sdpa", "optimizer": "adamw", "data": "guanaco", "measure": "default"}
"""Options that all files of the study share."""


@dataclass(frozen=True)
class StudyFile:
    """One file of the study: its group options, its axis, and the fixed value of the other axis."""

    choices: dict[str, str]
    axis: str  # seq_len | batch
    other: int
    guessed: tuple[str, ...] = ()  # groups whose option the file name does not give


@dataclass
class StudyPoint:
    """One value of the axis with the quantities of each GPU's line."""

    value: int
    oom: bool = False
    ranks: dict[int, tuple[int, int, float]] = field(default_factory=dict)  # active bytes, reserved bytes, iterations/s
    repeated: int = 0  # lines that replaced an earlier line of the same GPU


def guess_configuration(file: Path, **given: str | int | None) -> StudyFile:
    """Guess the configuration from the file name; values in ``given`` (a group, ``axis`` or ``other``) take precedence.

    Without ``default`` or ``expandable`` in the name, expandable segments are assumed; without a stage, ZeRO-3, as in
    the study's later files and its ds_config.json. ``guessed`` lists such groups.
    """
    name = file.stem.lower()
    small = "0.5b" in name
    choices = {
        **COMMON,
        "model": "qwen15_05b" if small else "llama3_8b",
        "zero_stage": "zero2" if "zero2" in name else "zero3",
        "offload": "optimizer" if "offload" in name else "none",
        "checkpointing": "full" if "ckpt" in name else "none",
        "allocator": "default" if "default" in name else "expandable",
        "hardware": "rtx3090_x1" if small else "a100_80g_x8",
    }
    words_of = {"zero_stage": ("zero",), "allocator": ("default", "expandable")}
    guessed = [group for group, words in words_of.items() if not any(word in name for word in words)]
    axis = given.pop("axis", None) or ("batch" if "batch" in name else "seq_len")
    other = given.pop("other", None) or (2048 if axis == "batch" else 1)
    chosen = {group: str(option) for group, option in given.items() if option is not None}
    return StudyFile(choices | chosen, str(axis), int(other), tuple(group for group in guessed if group not in chosen))


def read_points(file: Path) -> tuple[list[StudyPoint], int]:
    """Read the points of a file, in file order, and its number of GPUs. Raises :class:`MemlabError` with the line."""
    points: dict[int, StudyPoint] = {}
    gpus = 0
    with explained(MemlabError, file):
        lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if (cells := [cell.strip() for cell in line.split(",")]) == [""]:
            continue
        try:
            gpus = max(gpus, _read_line(cells, points))
        except (ValueError, OverflowError) as error:
            raise MemlabError(f"{file}:{number}: {error}") from error
    if not gpus:
        raise MemlabError(f"{file}: no line holds memory values. Give a file of the study gpjt/fine-tune-2024-04.")
    return list(points.values()), gpus


def _read_line(cells: list[str], points: dict[int, StudyPoint]) -> int:
    """Add one line to its point. Returns the number of GPUs in the columns of the line; 0 for an OOM line."""
    if (value := int(cells[0])) < 1:
        raise ValueError(f"the first column must be at least 1, not {value}")
    point = points.setdefault(value, StudyPoint(value))
    if cells[1:] == ["OOM"]:
        point.oom = True
        return 0
    gpus, odd = divmod(len(cells) - 2, 2)
    if odd or gpus < 1:
        raise ValueError(f"{len(cells)} columns; expected the axis value, a pair for each GPU, and iterations/s")
    numbers = [float(cell) for cell in cells[1:]]
    if not all(math.isfinite(number) and number >= 0 for number in numbers) or numbers[-1] == 0:
        raise ValueError("a value is not a finite number above zero")
    pairs = zip(numbers[:-1:2], numbers[1:-1:2], strict=True)
    if not (filled := [(rank, pair) for rank, pair in enumerate(pairs) if any(pair)]):
        raise ValueError("no GPU has a value")
    for rank, (active, reserved) in filled:
        point.repeated += rank in point.ranks
        point.ranks[rank] = (round(active * MIB), round(reserved * MIB), numbers[-1])
    return gpus


def to_records(file: Path, study_file: StudyFile, correct_rate: bool = False) -> Iterable[Record]:
    """Yield a record for each point. ``correct_rate``: multiply iterations/s by 28/29 (see :data:`TIMED_STEPS`)."""
    points, gpus = read_points(file)
    environment = {**ENVIRONMENT, "imported_from": file.name, "rate_corrected": correct_rate}
    correction = TIMED_STEPS / (TIMED_STEPS + 1) if correct_rate else 1.0
    for point in points:
        config = _config(study_file, point.value, gpus)
        ranks = [
            imported_rank(
                rank,
                device_name=config.hardware.gpu,
                peak_active_bytes=active,
                peak_reserved_bytes=reserved,
                step_seconds=[1 / (rate * correction)],
                parameters=PARAMETERS.get(study_file.choices["model"]),
            )
            for rank, (active, reserved, rate) in ([] if point.oom else sorted(point.ranks.items()))
        ]
        yield imported_record(config, study_file.choices, environment, ranks, "gpu_oom" if point.oom else "ok")


def _config(study_file: StudyFile, value: int, gpus: int) -> Config:
    """Build the configuration of a point, as the study ran it.

    Each point had its own process, with peaks from process start (protocol ``cold``). The model was built outside
    zero.Init, and DeepSpeed 0.14.2 uses memory-efficient linear layers only inside zero.Init. Checkpoints are
    reentrant, the default of transformers 4.40.
    """
    other = next(axis for axis in AXES if axis != study_file.axis)
    values = {
        AXES[study_file.axis]: value,
        AXES[other]: study_file.other,
        "hardware.gpus": gpus,
        "model.weights": "pretrained",
        "optimizer.lr": 8e-5,
        "optimizer.weight_decay": 0.01,
        "measure.warmup": 2,
        "measure.steps": TIMED_STEPS,
        "measure.protocol": "cold",
        "checkpointing.reentrant": study_file.choices["checkpointing"] != "none",
    }
    if study_file.choices["zero_stage"] == "zero3":
        values["zero_stage.memory_efficient_linear"] = False
    return config_of(study_file.choices, values)
