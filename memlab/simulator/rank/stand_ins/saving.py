"""Saved files: a tensor without values is written as its description, and read again as such a tensor.

Files have the format of their library. Where a weight would be, a safetensors file has a hole that takes no disk. A
file of torch.save carries the size that it would have, for the sandbox.
"""

import contextlib
import functools
import json
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memlab.simulator.rank import device
from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn
from memlab.system.sandbox import SIZE


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(changes={"torch.serialization": _describe_tensors, "safetensors.torch": _leave_holes})


# --- torch.save and torch.load


class SavedStorage:
    """A storage without values in a file: its bytes and the device that it was on. Tensors of the file share it."""

    def __init__(self, nbytes: int, place: str):
        self.nbytes, self.place = nbytes, place
        self._restored: torch.Tensor | None = None

    def __reduce__(self):
        return SavedStorage, (self.nbytes, self.place)

    def restored(self) -> torch.Tensor:
        """Return all bytes as one tensor, where ``torch.load`` was told to put them."""
        if self._restored is None:
            host = device.recorder.host_tensor((self.nbytes,), torch.uint8)
            self._restored = host.to(_Location.of(self.place))
        return self._restored


def restored_view(storage: SavedStorage, dtype: torch.dtype, shape, strides, offset: int) -> torch.Tensor:
    return storage.restored().view(dtype).as_strided(shape, strides, offset)


def restored_values(values: torch.Tensor, place: str) -> torch.Tensor:
    return values.to(_Location.of(place))


_saved: set[SavedStorage] = set()
"""Storages of the file that is being written."""


class _Location:
    """``map_location`` of the ``torch.load`` that runs."""

    current: Any = None

    @classmethod
    def of(cls, place: str) -> torch.device:
        storage = torch.serialization._get_restore_location(cls.current)(torch.UntypedStorage(0), place)
        return torch.device(getattr(storage, "_memlab_place", storage.device))


def _on_gpu(storage: torch.UntypedStorage, place: Any = None, *rest, **options) -> torch.UntypedStorage:
    """Note that tensors of a storage on the host belong on a GPU: no storage is made there."""
    storage._memlab_place = torch.device(device.NAME, torch.cuda._get_device_index(place, optional=True))
    return storage


def _rebuilt_there(rebuild: Callable) -> Callable:
    """Let tensors that ``torch.load`` rebuilds from such a storage share one tensor on the GPU."""

    @functools.wraps(rebuild)
    def rebuild_there(storage: torch.TypedStorage, offset: int, shape, strides) -> torch.Tensor:
        host = storage._untyped_storage
        if not hasattr(storage, "_memlab_moved") and not hasattr(host, "_memlab_place"):
            return rebuild(storage, offset, shape, strides)
        if not hasattr(storage, "_memlab_moved"):
            whole = rebuild(storage, 0, (host.nbytes() // storage.dtype.itemsize,), (1,))
            storage._memlab_moved = whole.to(host._memlab_place)
            if hasattr(host, "_torch_load_uninitialized"):  # an old file: it is read after its tensors are made
                device.recorder.values.forget(storage._memlab_moved)
            else:
                storage._untyped_storage = torch.UntypedStorage(0)
        return storage._memlab_moved.view(storage.dtype).as_strided(shape, strides, offset)

    return rebuild_there


def _describe_tensors(serialization: ModuleType, recorder: Recorder) -> None:
    FakeTensor.__reduce_ex__ = _description
    serialization.add_safe_globals([SavedStorage, restored_view, restored_values])
    serialization.register_package(
        15,  # before torch's own, which makes a storage on the GPU
        lambda storage: None,
        lambda storage, place: _on_gpu(storage, place) if place.startswith(device.NAME) else None,
    )
    torch.UntypedStorage.cuda = _on_gpu
    torch._utils._rebuild_tensor = _rebuilt_there(torch._utils._rebuild_tensor)
    load, save = serialization.load, serialization.save

    @functools.wraps(save)
    def save_with_size(obj: Any, f: Any, *args, **options) -> None:
        _saved.clear()
        save(obj, f, *args, **options)
        if _saved and isinstance(f, str | os.PathLike):
            with contextlib.suppress(OSError):  # a file system without extended attributes
                os.setxattr(f, SIZE, str(sum(each.nbytes for each in _saved)).encode())

    @functools.wraps(load)
    def load_there(f: Any, map_location: Any = None, *args, **options) -> Any:
        before, _Location.current = _Location.current, map_location
        try:
            return load(f, map_location, *args, **options)
        finally:
            _Location.current = before

    serialization.load = torch.load = load_there
    serialization.save = torch.save = save_with_size


def _description(tensor: FakeTensor, protocol: int) -> tuple:
    if isinstance(tensor, torch.nn.Parameter):
        return torch._utils._rebuild_parameter, (tensor.detach(), tensor.requires_grad, {})
    known = device.recorder.values.of(tensor)
    if known is not None:
        return restored_values, (known.clone(), str(tensor.device))
    storage = tensor.untyped_storage()
    if not hasattr(storage, "_memlab_saved"):
        storage._memlab_saved = SavedStorage(storage.nbytes(), str(tensor.device))
    _saved.add(storage._memlab_saved)
    view = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return restored_view, (storage._memlab_saved, *view)


# --- safetensors


def _leave_holes(safetensors: ModuleType, recorder: Recorder) -> None:
    names = {dtype: name for name, dtype in safetensors._TYPES.items()}
    save_file, save_model = safetensors.save_file, safetensors.save_model

    @functools.wraps(save_file)
    def save(tensors: Mapping[str, torch.Tensor], filename: Any, metadata: Mapping[str, str] | None = None) -> None:
        if any(isinstance(tensor, FakeTensor) for tensor in tensors.values()):
            _write_header(tensors, filename, metadata, names)
        else:
            save_file(tensors, filename, metadata)

    @functools.wraps(save_model)
    def save_whole(model: torch.nn.Module, filename: str, metadata=None, force_contiguous: bool = True) -> None:
        kept, left_out = _without_tied(model.state_dict())
        save(kept, filename, {**(metadata or {}), **left_out})

    safetensors.save_file, safetensors.save_model = save, save_whole


def _without_tied(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Leave out tensors that are the same memory as another one, as ``save_model`` does. Returns those that are kept,
    and the name of each that is left out -> the name under which it is kept."""
    names: dict[tuple, str] = {}
    for name, tensor in sorted(tensors.items()):
        names.setdefault(_memory_of(tensor), name)
    kept = {name: names[_memory_of(tensor)] for name, tensor in tensors.items()}
    return (
        {name: tensor for name, tensor in tensors.items() if kept[name] == name},
        {name: other for name, other in kept.items() if other != name},
    )


def _memory_of(tensor: torch.Tensor) -> tuple:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape)


def _write_header(tensors: Mapping[str, torch.Tensor], filename: Any, metadata, names: Mapping) -> None:
    """Write the header of the format, and a hole of the size of the weights: https://github.com/huggingface/safetensors."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(filename, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
