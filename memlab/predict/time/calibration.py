"""Calibration of step times as it is stored: the fitted costs, their errors, and the records they came from."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from memlab.core.errors import MemlabError
from memlab.files.json_file import read_json, write_json
from memlab.predict.time.clocks import Costs

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
        return {name: cost for name, cost in self.costs.to_json().items() if name not in self.undetermined}

    def to_json(self) -> dict[str, Any]:
        return {JSON_KEYS.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> "Calibration":
        try:
            names = {key: name for name, key in JSON_KEYS.items()}
            fields = {names.get(key, key): value for key, value in values.items()}
            return cls(**{**fields, "costs": Costs(**values["costs"])})
        except (KeyError, TypeError):
            raise MemlabError(
                f"{where} is no calibration. Give a folder of measured runs, or what "
                "'python -m memlab.predict.time.calibrate RUNS --output FILE' writes."
            ) from None

    def save(self, path: Path) -> None:
        write_json(path, self.to_json())


def read_calibration(path: Path) -> Calibration:
    """Read a calibration from a file. Raises :class:`MemlabError` for anything else."""
    return Calibration.from_json(read_json(path), str(path))


@cache
def shipped() -> Calibration:
    return read_calibration(SHIPPED)
