"""Calibrations: the step time's costs, fitted to measured runs. ``make calibration`` makes the one that ships.

A calibration keeps its errors and the records that it came from. A prediction takes the one that ships, a file, or one
that is fitted to a folder of runs.
"""

import hashlib
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from memlab.core.config import Config
from memlab.core.config_values import library_values
from memlab.core.errors import MemlabError, ShadowError
from memlab.core.grouping import grouped
from memlab.core.plan import make_plan
from memlab.core.record import Record
from memlab.files.disk import cache_folder, write_output
from memlab.files.json_file import read_json, write_json
from memlab.prediction.not_predicted import unpredictable
from memlab.prediction.time.clocks import Costs, has_clocks, missing_specifications
from memlab.prediction.time.cost_fit import Case, CostFit, check_enough, fit_costs
from memlab.prediction.traces.choose_traces import trace_missing, traces
from memlab.prediction.traces.store import code_digest, trace_folder
from memlab.runs.folder import RunFolder
from memlab.simulator.trace.trace_format import Traces
from memlab.system.terminal import safe

SHIPPED = Path(__file__).parent / "calibration.json"
"""The shipped calibration, which ``make calibration`` makes from results/."""

JSON_KEYS = {"determined_once": "single", "from_shipped": "elsewhere"}
"""Field -> its key in the file, where the key has another name."""


@dataclass(frozen=True)
class Calibration:
    """Fitted costs of one kind of GPU in one kind of machine. ``error``: quantiles of the errors on configurations that
    the fit had not seen, as a share of the prediction, with the same weight for every configuration."""

    gpu: str
    costs: Costs
    undetermined: list[str]  # costs that the records do not determine; they are at their bounds
    error: dict[str, float]  # median, p90
    records: list[str]
    determined_once: list[str] = field(default_factory=list)  # costs that one configuration alone determines: unchecked
    from_shipped: list[str] = field(default_factory=list)  # costs taken from the shipped calibration
    left_out: list[str] = field(default_factory=list)  # records that depend on undetermined costs
    errors_by_family: dict[str, float | None] = field(default_factory=dict)
    # Median of measured / predicted - 1; ``None`` where the configuration alone determines a cost that it depends on.
    versions: dict[str, list[str]] = field(default_factory=dict)  # of the records

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def determined(self) -> dict[str, float]:
        """Return the costs that are determined, without the ones at their bounds."""
        return {name: cost for name, cost in asdict(self.costs).items() if name not in self.undetermined}

    def to_json(self) -> dict[str, Any]:
        return {JSON_KEYS.get(name, name): value for name, value in asdict(self).items()}

    def save(self, path: Path) -> None:
        write_json(path, self.to_json(), write_output)


def read_calibration(path: Path) -> Calibration:
    """Read a calibration from a file. Raises :class:`MemlabError` for anything else."""
    values = read_json(path.resolve())
    try:
        names = {key: name for name, key in JSON_KEYS.items()}
        fields = {names.get(key, key): value for key, value in values.items()}
        return Calibration(**{**fields, "costs": Costs(**values["costs"])})
    except (KeyError, TypeError):
        raise MemlabError(
            f"{path} is no calibration. Give a folder of measured runs, or what "
            "'python -m tools.calibration RUNS --output FILE' writes in a clone of memlab."
        ) from None


@cache
def shipped() -> Calibration:
    return read_calibration(SHIPPED)


VERSIONS = ("torch", "deepspeed", "transformers")


def usable(folders: Iterable[Path]) -> list[Record]:
    """Read the records below ``folders`` that measured a step on one node, with a configuration that can be
    predicted."""
    paths = sorted(path for folder in folders for path in folder.rglob(RunFolder.RECORD))
    return list(filter(_is_usable, [RunFolder(path.parent).read_record() for path in paths]))


def _is_usable(record: Record) -> bool:
    config = record.config
    is_measured = record.source == "measured" and record.status == "ok" and "step_seconds" in record.summary
    on_one_node = is_measured and config.hardware.nodes == 1
    return on_one_node and not unpredictable(config) and not missing_specifications(config)


def calibrate(records: Sequence[Record], fallback: Calibration | None = None) -> Calibration:
    """Fit a calibration to ``records``. Costs that they do not determine are taken from ``fallback`` if it is of the
    same GPU. Raises :class:`MemlabError` where the records are too few, or of several kinds of GPUs."""
    check_records(records)
    gpu = records[0].config.hardware.gpu
    _trace_together(records)
    traced: dict[tuple, Traces] = {}
    cases = [case for record in records if (case := _case(record, traced))]
    found = fit_costs(cases, fallback.determined() if fallback and fallback.gpu == gpu else None)
    return Calibration(
        gpu=gpu,
        costs=found.costs,
        undetermined=found.undetermined,
        determined_once=found.determined_once,
        from_shipped=found.from_shipped,
        error={"median": found.error(0.5), "p90": found.error(0.9)},
        records=sorted(case.name for case in found.cases),
        left_out=sorted(case.name for case in found.left_out),
        errors_by_family=_by_family(found),
        versions={name: sorted({str(record.environment.get(name)) for record in records}) for name in VERSIONS},
    )


def check_records(records: Sequence[Record]) -> None:
    """Raise :class:`MemlabError` where the records are too few, or of several kinds of GPUs. Traces nothing."""
    if len(gpus := sorted({record.config.hardware.gpu for record in records})) > 1:
        raise MemlabError(f"A calibration is of one kind of GPU, and these runs are of {', '.join(gpus)}.")
    check_enough([family(record.config) for record in records])


def _trace_together(records: Sequence[Record]) -> None:
    """Make the traces that all records need in one process. A failure is reported later, with its record."""
    plans = [make_plan(record.config, record.choices) for record in records]
    trace_missing(plans, lambda done, of: print(f"\rtraced {done} of {of}", end="", file=sys.stderr))
    print(file=sys.stderr)


def _case(record: Record, traced: dict[tuple, Traces]) -> Case | None:
    """Make the case of a record; ``None``, with a message, if its step cannot be traced. ``traced`` keeps the traces,
    which records that differ in their allocator share."""
    config = record.config
    plan = make_plan(config, record.choices)
    key = (trace_folder(plan), config.batch.micro, config.batch.accumulation, config.seq_len.tokens)
    try:
        if key not in traced:
            traced[key] = traces(plan)
        if not has_clocks(config, traced[key].values()):
            raise ShadowError("what its step asks of the machine is unknown")
    except ShadowError as error:
        print(f"left out {record.run_id}: {safe(error)}", file=sys.stderr)
        return None
    return Case(record.run_id, family(config), config, traced[key], record.summary["step_seconds"])


def family(config: Config) -> str:
    """Name the engine configuration: the options that determine which work is done and how, but not batch and
    length."""
    offload = f"{config.offload.optimizer}/{config.offload.param}"
    facts = {
        "model": config.model.path,
        "stage": config.zero_stage.stage,
        "offload": None if offload == "none/none" else offload,
        "checkpointing": "on" if config.checkpointing.enabled else None,
        "attention": None if config.attention.implementation == "sdpa" else config.attention.implementation,
        "precision": None if config.precision.dtype == "bf16" else config.precision.dtype,
        "optimizer": None if config.optimizer.name == "AdamW" else config.optimizer.name,
        "adapter": None if config.adapter.method == "none" else config.adapter.method,
        "kernels": None if config.kernels.implementation == "none" else config.kernels.implementation,
        "gpus": config.hardware.gpus,
        **library_values(config),
    }
    return " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)


def _by_family(found: CostFit) -> dict[str, float | None]:
    cases = sorted(zip(found.cases, found.errors, strict=True), key=lambda pair: pair[0].family)
    families = grouped(cases, lambda pair: pair[0].family)
    medians = {name: float(np.median([error for _, error in pairs])) for name, pairs in families.items()}
    return {name: None if math.isnan(value) else value for name, value in medians.items()}


@dataclass(frozen=True)
class Calibrations:
    """The calibrations of one prediction.

    ``step``: for the step time; ``None`` if there is none for the GPU, or if there are several nodes. ``host``: for the
    release delays of blocks, which depend on the host's costs; the shipped one if ``step`` is ``None``, because host
    times depend on Python and the engine, not on the GPU.
    """

    step: Calibration | None
    host: Calibration


def calibrations_of(config: Config) -> Calibrations:
    """Choose the calibrations of a prediction, and fit them where ``predict.calibrate`` names a folder of runs.

    Raises :class:`MemlabError` where ``predict.calibrate`` names nothing usable.
    """
    step = _for_steps(config)
    return Calibrations(step, step or shipped())


def _for_steps(config: Config) -> Calibration | None:
    if config.hardware.nodes > 1:
        return None  # no hardware entry describes the links between nodes
    path = config.predict.calibrate
    found = _load(Path(path)) if path else shipped()
    if path and found.gpu != config.hardware.gpu:
        raise MemlabError(f"predict.calibrate={path}: measured on {found.gpu!r}, not on {config.hardware.gpu!r}.")
    return found if found.gpu == config.hardware.gpu else None


def check_calibrations(configs: Iterable[Config]) -> None:
    """Raise :class:`MemlabError` where ``predict.calibrate`` is not there, or no calibration. Fits nothing."""
    for given in dict.fromkeys(config.predict.calibrate for config in configs if config.predict.calibrate):
        if not (path := Path(given)).exists():
            raise MemlabError(f"predict.calibrate={given}: no such file or folder.")
        if path.is_dir():
            _check_runs(path, given)
        else:
            _load(path)


def _check_runs(folder: Path, given: str) -> None:
    if not any(folder.rglob(RunFolder.RECORD)):
        raise MemlabError(f"predict.calibrate={given}: the folder holds no run with a record.")
    try:
        check_records(usable([folder]))
    except MemlabError as error:
        raise MemlabError(f"predict.calibrate={given}: {error}") from error


@cache
def _load(path: Path) -> Calibration:
    """Read a calibration from a file, or fit one to the runs of a folder. The fitted one is kept until the runs
    change."""
    if not path.is_dir():
        return read_calibration(path)
    records = usable([path])
    if (file := cache_folder("calibrations") / f"{_digest(records)}.json").exists():
        return read_calibration(file)
    found = calibrate(records, fallback=shipped())
    found.save(file)
    return found


def _digest(records: Sequence[Record]) -> str:
    """Return a digest of the runs, of the code that counts and fits, and of the shipped calibration, which gives the
    costs that the runs do not determine."""
    digest = hashlib.sha256(f"{code_digest()} {shipped().digest}\n".encode())
    for record in records:
        digest.update(f"{record.run_id} {record.fingerprint} {record.summary['step_seconds']}\n".encode())
    return digest.hexdigest()[:16]
