"""Pretrained weights: tensors of the same shapes without values, and nothing is downloaded or read.

``from_pretrained`` runs as it is, with its own choice of dtype, device and quantization, and with its own order of
reading. Only its files are replaced: a file that is there gives the names, shapes and dtypes in its header, and a file
that is missing gives what ``save_pretrained`` would write for the model.

Host memory is that of a mapped file (``safe_open``, ``torch.load(mmap=True)``): a weight is resident from its first use
until the file is closed, in the dtype of the file. Source: ``_load_pretrained_model`` of transformers 5.23.
"""

import os
from collections.abc import Callable, KeysView
from types import ModuleType
from typing import Any, NamedTuple

import torch

from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn
from memlab.simulator.rank.unpredictable import UnpredictableError

MISSING = "weights-that-are-not-here.safetensors"
"""Name of the file that stands for missing files. transformers chooses the reader by its suffix."""


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(
        changes={
            "transformers.modeling_utils": _replace_files,
            "safetensors.torch": _read_headers,
            "peft.peft_model": _leave_adapters_as_they_are,
        }
    )


_DEQUANTIZING = ("mxfp4", "fp8")
"""Methods of quantization that can dequantize the weights while they load."""


class Weight(NamedTuple):
    """A tensor in a file."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class _File:
    """An open safetensors file without bytes. A tensor that was read stays resident until the file is closed."""

    def __init__(self, weights: dict[str, Weight], recorder: Recorder):
        self._weights, self._recorder = weights, recorder
        self._resident: list[torch.Tensor] = []

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *error) -> None:
        self._resident.clear()

    def keys(self) -> KeysView[str]:
        return self._weights.keys()

    def get_tensor(self, name: str) -> torch.Tensor:
        self._resident.append(self._recorder.host_tensor(*self._weights[name]))
        return self._resident[-1]

    def get_slice(self, name: str) -> "_Slice":
        return _Slice(self, name, self._weights[name])

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._weights}


class _Slice:
    """A tensor of a file that is read when it is indexed (``PySafeSlice`` of safetensors)."""

    def __init__(self, file: _File, name: str, weight: Weight):
        self._file, self._name, self._weight = file, name, weight

    def get_shape(self) -> list[int]:
        return list(self._weight.shape)

    def get_dtype(self) -> str:
        from safetensors.torch import _TYPES

        return next(name for name, dtype in _TYPES.items() if dtype is self._weight.dtype)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._file.get_tensor(self._name)[index]


class _Files:
    """Weights of the files of all models: read from headers, or made from the model where the files are missing."""

    def __init__(self, modeling_utils: ModuleType, recorder: Recorder):
        self._find = modeling_utils._get_resolved_checkpoint_files
        self._read_config = modeling_utils.PreTrainedConfig.get_config_dict
        self._recorder = recorder
        self._made: dict[str, dict[str, Weight]] = {}
        self._dtypes: dict[str, torch.dtype] = {}  # first file of a model -> dtype in its configuration

    def find(self, **options) -> tuple[list[str], dict[str, Any] | None]:
        """Return the files of a model as transformers does, or one that stands for them if any is missing."""
        options["download_kwargs"] = {**(options.get("download_kwargs") or {}), "local_files_only": True}
        try:
            files, metadata = self._find(**options)
        except OSError:
            files, metadata = [], None
        path = str(options["pretrained_model_name_or_path"])
        if not files or not all(os.path.exists(file) and os.path.getsize(file) for file in files):
            files, metadata = [os.path.join(path, MISSING)], None
        config, _ = self._read_config(path, **options["download_kwargs"])
        self._dtypes[files[0]] = dtype = _dtype_of(config)
        return files, {"dtype": dtype, **(metadata or {})}

    def make(self, file: str, model: torch.nn.Module) -> None:
        self._made[file] = _as_saved(model, self._dtypes[file])

    def open(self, file: str | os.PathLike, *rest, **options) -> _File:
        return _File(self._weights_of(os.fspath(file)), self._recorder)

    def read(self, file: str | os.PathLike, map_location: Any = "cpu", **options) -> dict[str, torch.Tensor]:
        """``load_state_dict`` of transformers."""
        if str(map_location) != "meta":
            return {name: tensor.to(map_location) for name, tensor in self.open(file).get_tensors().items()}
        return {name: _on_meta(weight) for name, weight in self._weights_of(os.fspath(file)).items()}

    def _weights_of(self, file: str) -> dict[str, Weight]:
        if file not in self._made:
            self._made[file] = _header(file)
        return self._made[file]


def _header(file: str) -> dict[str, Weight]:
    """Return the names, shapes and dtypes in a file that safetensors or ``torch.save`` wrote."""
    if not file.endswith(".safetensors"):
        tensors = torch.load(file, map_location="meta", weights_only=True)
        return {name: Weight(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    from safetensors.torch import _TYPES, safe_open

    with safe_open(file, framework="pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (no dictionary)
        return {name: Weight(tuple(each.get_shape()), _TYPES[each.get_dtype()]) for name, each in slices.items()}


def _dtype_of(config: dict[str, Any]) -> torch.dtype:
    """Return the dtype that a configuration names for its weights, 32 bits where it names none."""
    for each in (config, config.get("text_config", {})):
        if name := each.get("dtype", each.get("torch_dtype")):
            return getattr(torch, name)
    return torch.float32


def _as_saved(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, Weight]:
    """Return what ``save_pretrained`` writes for the model: each weight once, floats in ``dtype``."""
    from transformers.core_model_loading import revert_weight_conversion

    partitioned = dict(model.named_parameters())  # those under zero.Init know their full shape
    weights = {}
    for name, tensor in model.state_dict().items():
        if name not in model.all_tied_weights_keys:
            shape = getattr(partitioned.get(name), "ds_shape", tensor.shape)
            weights[name] = _on_meta(Weight(shape, dtype if tensor.is_floating_point() else tensor.dtype))
    saved = revert_weight_conversion(model, weights)
    return {name: Weight(tuple(tensor.shape), tensor.dtype) for name, tensor in saved.items()}


def _on_meta(weight: Weight) -> torch.Tensor:
    # Not torch.empty, which zero.Init and ``with torch.device(...)`` redirect.
    return torch.ops.aten.empty.memory_format(list(weight.shape), dtype=weight.dtype, device=torch.device("meta"))


def _replace_files(modeling_utils: ModuleType, recorder: Recorder) -> None:
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # threads of a pool, which would not record
    files = _Files(modeling_utils, recorder)
    modeling_utils._get_resolved_checkpoint_files = files.find
    modeling_utils.safe_open = files.open
    modeling_utils.load_state_dict = files.read
    modeling_utils.get_hf_quantizer = _known_quantizer(modeling_utils.get_hf_quantizer)
    model_class = modeling_utils.PreTrainedModel
    load = model_class._load_pretrained_model

    def load_shapes(model, state_dict, checkpoint_files, load_config, *rest, **options):
        # Files in 4 bits hold values that Python reads: they are taken for missing, too.
        if state_dict is None:
            file = checkpoint_files[0]
            if load_config.hf_quantizer is not None or os.path.basename(file) == MISSING:
                checkpoint_files = [file]
                files.make(file, model)
        return load(model, state_dict, checkpoint_files, load_config, *rest, **options)

    model_class._load_pretrained_model = staticmethod(load_shapes)


def _known_quantizer(get_hf_quantizer: Callable) -> Callable:
    """Return transformers' choice of a quantizer for methods that have a stand-in.

    These are bitsandbytes (stand_ins/bitsandbytes.py), and methods that dequantize while they load, which give an
    ordinary model.
    """

    def get_known(config, quantization_config, *rest, **options):
        method = _method(quantization_config or getattr(config, "quantization_config", None))
        if method not in (None, "bitsandbytes", *_DEQUANTIZING):
            raise _no_stand_in(method)
        quantizer, config, device_map = get_hf_quantizer(config, quantization_config, *rest, **options)
        if quantizer is None:
            return None, config, device_map
        if (method := _method(quantizer.quantization_config)) == "bitsandbytes":
            quantizer.pre_quantized = False  # files in 4 or 8 bits: as if they were quantized while they load
            return quantizer, config, device_map
        if method not in _DEQUANTIZING or not quantizer.quantization_config.dequantize:
            raise _no_stand_in(method)
        del config.quantization_config
        return None, config, device_map

    return get_known


def _method(quantization_config: Any) -> str | None:
    if isinstance(quantization_config, dict):
        return quantization_config.get("quant_method", "bitsandbytes")  # older configurations have no name for it
    method = getattr(quantization_config, "quant_method", None)
    return getattr(method, "value", method)


def _no_stand_in(method: str | None) -> UnpredictableError:
    return UnpredictableError(
        f"weights quantized by {method} have no stand-in. Predicted are BitsAndBytesConfig (4 and 8 bits), and mxfp4 "
        "and fp8 with dequantize=True."
    )


def _read_headers(safetensors: ModuleType, recorder: Recorder) -> None:
    """Let ``load_file`` read shapes in place of floats. Integers and masks are read: they may be data."""

    def load_file(filename, device="cpu", **options) -> dict[str, torch.Tensor]:
        with safetensors.safe_open(filename, framework="pt") as file:
            return {
                name: (recorder.host_tensor(*weight) if weight.dtype.is_floating_point else file.get_tensor(name)).to(
                    device
                )
                for name, weight in _header(os.fspath(filename)).items()
            }

    safetensors.load_file = load_file


def _leave_adapters_as_they_are(peft_model: ModuleType, recorder: Recorder) -> None:
    """Load no weights of an adapter that are not here: peft has made its parameters in their final shapes."""
    load = peft_model.load_peft_weights

    def load_what_is_here(*arguments, **options) -> dict[str, torch.Tensor]:
        try:
            return load(*arguments, **options)
        except (OSError, ValueError):  # no file; a folder's path is no name in the Hub
            return {}

    peft_model.load_peft_weights = load_what_is_here
