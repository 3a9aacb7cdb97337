"""Calibration of step times as it is stored: the fitted costs, their errors, and the records they came from."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from memlab.core.config import Config
from memlab.core.errors import MemlabError
from memlab.files.json_file import read_json, write_json
from memlab.predict.time.step_time import Costs
from memlab.predict.trace.store import code_digest, kept
from memlab.runs.folder import RunFolder

SHIPPED = Path(__file__).parent / "calibration.json"
"""The shipped calibration, which ``make calibration`` makes from results/."""


@dataclass(frozen=True)
class Calibration:
    """Fitted costs of one kind of GPU in one kind of machine. ``error``: quantiles of the errors on configurations that
    the fit had not seen, as a share of the prediction, with the same weight for every configuration."""

    gpu: str
    costs: Costs
    undetermined: list[str]  # costs that the records do not determine; they are at their bounds
    error: dict[str, float]  # median, p90
    records: list[str]
    single: list[str] = field(default_factory=list)  # costs that one configuration alone determines: unchecked
    elsewhere: list[str] = field(default_factory=list)  # costs taken from the shipped calibration
    left_out: list[str] = field(default_factory=list)  # records that depend on undetermined costs
    errors_by_family: dict[str, float | None] = field(default_factory=dict)
    # Median of measured / predicted - 1; ``None`` where the configuration alone determines a cost that it depends on.
    versions: dict[str, list[str]] = field(default_factory=dict)  # of the records

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def determined(self) -> dict[str, float]:
        """Return the costs that are determined, without the ones at their bounds."""
        return {name: cost for name, cost in self.costs.to_json().items() if name not in self.undetermined}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> "Calibration":
        try:
            return cls(**{**values, "costs": Costs(**values["costs"])})
        except (KeyError, TypeError):
            raise MemlabError(
                f"{where} is no calibration. Give a folder of measured runs, or what "
                "'python -m memlab.predict.time.calibrate RUNS --output FILE' writes."
            ) from None

    def save(self, path: Path) -> None:
        write_json(path, self.to_json())


def calibration_for(config: Config) -> Calibration | None:
    """Return the calibration for a prediction; ``None`` if there is none for its GPU, or if it has several nodes.

    Raises :class:`MemlabError` where ``predict.calibrate`` names nothing usable.
    """
    if config.hardware.nodes > 1:
        return None  # no hardware entry describes the links between nodes
    path = config.predict.calibrate
    found = load(Path(path).resolve()) if path else load(SHIPPED)
    if path and found.gpu != config.hardware.gpu:
        raise MemlabError(f"predict.calibrate={path}: measured on {found.gpu!r}, not on {config.hardware.gpu!r}.")
    return found if found.gpu == config.hardware.gpu else None


def check_calibrations(configs: Iterable[Config]) -> None:
    """Raise :class:`MemlabError` where ``predict.calibrate`` is not there, or no calibration. Fits nothing."""
    for given in dict.fromkeys(config.predict.calibrate for config in configs if config.predict.calibrate):
        path = Path(given)
        if not path.exists():
            raise MemlabError(f"predict.calibrate={given}: no such file or folder.")
        if path.is_dir():
            _check_runs(path, given)
        else:
            load(path.resolve())


def _check_runs(folder: Path, given: str) -> None:
    from memlab.predict.time.calibrate import check, usable  # which imports this module

    if not any(folder.rglob(RunFolder.RECORD)):
        raise MemlabError(f"predict.calibrate={given}: the folder holds no run with a record.")
    try:
        check(usable([folder]))
    except MemlabError as error:
        raise MemlabError(f"predict.calibrate={given}: {error}") from error


@cache
def load(path: Path) -> Calibration:
    """Load a calibration from a file, or fit one to the runs of a folder. The fitted one is kept until the runs
    change."""
    if path.is_dir():
        return _of_runs(path)
    return Calibration.from_json(read_json(path), str(path))


def _of_runs(folder: Path) -> Calibration:
    from memlab.predict.time.calibrate import calibrate, usable  # which imports this module

    records = usable([folder])
    file = kept("calibrations") / f"{_digest(records)}.json"
    if file.exists():
        return load(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    found = calibrate(records, fallback=load(SHIPPED))
    found.save(file)
    return found


def _digest(records: Sequence[Any]) -> str:
    """Return a digest of the runs, of the code that counts and fits, and of the shipped calibration, which gives the
    costs that the runs do not determine."""
    digest = hashlib.sha256(f"{code_digest()} {load(SHIPPED).digest}\n".encode())
    for record in records:
        digest.update(f"{record.run_id} {record.fingerprint} {record.summary['step_seconds']}\n".encode())
    return digest.hexdigest()[:16]
