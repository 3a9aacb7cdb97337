"""What a fit found, as it is kept: the costs, how far off they are, and what they came from."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from memlab.config import Config
from memlab.errors import MemlabError
from memlab.json_file import read_json
from memlab.predict.cache import code_digest, kept
from memlab.predict.step_time import Costs
from memlab.record import RunFolder, write_json

SHIPPED = Path(__file__).parent / "calibration.json"
"""Made from results/ by ``make calibration``."""


@dataclass(frozen=True)
class Calibration:
    """Of one kind of GPU in one kind of machine. ``error``: of a configuration that the fit had not seen, as a share of
    the prediction, every configuration counting the same."""

    gpu: str
    costs: Costs
    undetermined: list[str]  # costs that no record says anything of; they are at their bounds
    error: dict[str, float]  # median, p90
    records: list[str]
    single: list[str] = field(default_factory=list)  # costs that only one configuration tells: nothing checks them
    elsewhere: list[str] = field(default_factory=list)  # costs of the calibration that ships: no record tells them
    left_out: list[str] = field(default_factory=list)  # records that depend on what is undetermined
    errors_by_family: dict[str, float | None] = field(default_factory=dict)
    # Median of measured over predicted less one; ``None`` where only the configuration itself tells a cost.
    versions: dict[str, list[str]] = field(default_factory=dict)  # of the records

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def determined(self) -> dict[str, float]:
        """The costs that its records tell."""
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
                "'python -m memlab.predict.calibrate RUNS --output FILE' writes."
            ) from None

    def save(self, path: Path) -> None:
        write_json(path, self.to_json())


def calibration_for(config: Config) -> Calibration | None:
    """The calibration that a prediction goes by; ``None`` where there is none for its GPU, or for several nodes.

    Raises :class:`MemlabError` where ``predict.calibrate`` leads to nothing that can be used.
    """
    if config.hardware.nodes > 1:
        return None  # what is between nodes no hardware entry tells
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
    from memlab.predict.calibrate import check, usable  # which imports this module

    if not any(folder.rglob(RunFolder.RECORD)):
        raise MemlabError(f"predict.calibrate={given}: the folder holds no run with a record.")
    try:
        check(usable([folder]))
    except MemlabError as error:
        raise MemlabError(f"predict.calibrate={given}: {error}") from error


@cache
def load(path: Path) -> Calibration:
    """From a file, or fitted to the runs of a folder (once: the result is kept until they change)."""
    if path.is_dir():
        return _of_runs(path)
    return Calibration.from_json(read_json(path), str(path))


def _of_runs(folder: Path) -> Calibration:
    from memlab.predict.calibrate import calibrate, usable  # which imports this module

    records = usable([folder])
    file = kept("calibrations") / f"{_digest(records)}.json"
    if file.exists():
        return load(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    found = calibrate(records, fallback=load(SHIPPED))
    found.save(file)
    return found


def _digest(records: Sequence[Any]) -> str:
    """Of the runs, of the code that counts and fits, and of what ships for costs that they do not tell."""
    digest = hashlib.sha256(f"{code_digest()} {load(SHIPPED).digest}\n".encode())
    for record in records:
        digest.update(f"{record.run_id} {record.fingerprint} {record.summary['step_seconds']}\n".encode())
    return digest.hexdigest()[:16]
