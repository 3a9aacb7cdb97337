"""Saved files: tensors without values are not written; every other file is. What was not written cannot be read."""

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn
from memlab.predict.trace.shadow.unpredictable import UnpredictableError


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(changes={"torch.serialization": _save_real_objects, "safetensors.torch": _save_empty_files})


def _save_real_objects(serialization: ModuleType, recorder: Recorder) -> None:
    save = serialization.save

    @functools.wraps(save)
    def save_real(obj: Any, f: Any, *args, **options) -> None:
        if _has_fakes(obj):
            _write_nothing(f)
        else:
            save(obj, f, *args, **options)

    load = serialization.load

    @functools.wraps(load)
    def load_real(f: Any, *args, **options) -> Any:
        if isinstance(f, str | os.PathLike) and os.path.exists(f) and not os.path.getsize(f):
            raise UnpredictableError(
                f"{os.fspath(f)} is empty, because a prediction writes no tensors and so cannot read them again. "
                "Predict the training without resuming: only the phase of resuming differs."
            )
        return load(f, *args, **options)

    serialization.save = torch.save = save_real
    serialization.load = torch.load = load_real


def _save_empty_files(safetensors: ModuleType, recorder: Recorder) -> None:
    safetensors.save_file = _saves_to(1)
    safetensors.save_model = _saves_to(1)


def _saves_to(position: int) -> Callable[..., None]:
    def save(*args, **options) -> None:
        _write_nothing(args[position] if len(args) > position else options["filename"])

    return save


def _write_nothing(file: Any) -> None:
    """Make an empty file, so that the program finds one of that name."""
    if not hasattr(file, "write"):
        open(file, "wb").close()


def _has_fakes(value: Any) -> bool:
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, dict):
        return any(map(_has_fakes, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_fakes, value))
    return isinstance(value, FakeTensor)
