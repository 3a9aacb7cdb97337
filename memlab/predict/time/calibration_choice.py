"""Choice of the calibration of a prediction: the shipped one, a file, or one that is fitted to a folder of runs."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from memlab.core.config import Config
from memlab.core.errors import MemlabError
from memlab.core.record import Record
from memlab.files.cache_folder import cache_folder
from memlab.predict.time.calibrate import calibrate, check, usable
from memlab.predict.time.calibration import Calibration, read_calibration, shipped
from memlab.predict.trace.code_digest import code_digest
from memlab.runs.folder import RunFolder


@dataclass(frozen=True)
class Calibrations:
    """The calibrations of one prediction.

    ``step``: for the step time; ``None`` if there is none for the GPU, or if there are several nodes. ``host``: for the
    release delays of blocks, which depend on the host's costs; the shipped one if ``step`` is ``None``, because host
    times depend on Python and the engine, not on the GPU.
    """

    step: Calibration | None
    host: Calibration


def resolve(config: Config) -> Calibrations:
    """Choose the calibrations of a prediction, and fit them where ``predict.calibrate`` names a folder of runs.

    Raises :class:`MemlabError` where ``predict.calibrate`` names nothing usable.
    """
    step = _for_steps(config)
    return Calibrations(step, step or shipped())


def _for_steps(config: Config) -> Calibration | None:
    if config.hardware.nodes > 1:
        return None  # no hardware entry describes the links between nodes
    path = config.predict.calibrate
    found = _load(Path(path).resolve()) if path else shipped()
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
            _load(path.resolve())


def _check_runs(folder: Path, given: str) -> None:
    if not any(folder.rglob(RunFolder.RECORD)):
        raise MemlabError(f"predict.calibrate={given}: the folder holds no run with a record.")
    try:
        check(usable([folder]))
    except MemlabError as error:
        raise MemlabError(f"predict.calibrate={given}: {error}") from error


@cache
def _load(path: Path) -> Calibration:
    """Read a calibration from a file, or fit one to the runs of a folder. The fitted one is kept until the runs
    change."""
    if not path.is_dir():
        return read_calibration(path)
    records = usable([path])
    file = cache_folder("calibrations") / f"{_digest(records)}.json"
    if file.exists():
        return read_calibration(file)
    file.parent.mkdir(parents=True, exist_ok=True)
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
