"""The simulated GPUs of this process: torch's own device type ``cuda``, without a GPU.

Tensors on it are fake (shapes, dtypes and storages, no data). ``native/guard.cpp`` answers torch's C++ questions about
devices, streams and events; ``rank/cuda.py`` those of ``torch.cuda``.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memlab.simulator import constants
from memlab.simulator.rank import native

NAME = "cuda"

UNKNOWN_GIB = 80.0
"""Device memory (GiB) when the hardware entry has none."""


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a node. Like a real one, a process is on the first until it chooses another."""

    name: str = "NVIDIA H100"
    memory_bytes: int = int(UNKNOWN_GIB * 2**30)
    count: int = 1

    @property
    def model(self) -> constants.GpuModel:
        return constants.gpu_model(self.name)


class Generator(torch.Generator):
    """The generator of a GPU, whose state is a seed and an offset, 8 bytes each. It makes no numbers.

    Compiled graphs keep their own copy of it (``clone_state``), and exchange states that are generators themselves.
    """

    def __new__(cls, *place: Any):
        return super().__new__(cls)

    def __init__(self, index: int = 0):
        self._offset, self._place = 0, torch.device(NAME, index)

    @property
    def device(self) -> torch.device:
        return self._place

    def clone_state(self) -> "Generator":
        return Generator(self._place.index)

    def graphsafe_get_state(self) -> "Generator":
        return self

    def graphsafe_set_state(self, state: torch.Generator) -> "Generator":
        return self

    def get_state(self) -> torch.Tensor:
        return torch.tensor([self.initial_seed(), self._offset]).view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        seed, self._offset = state.view(torch.int64).tolist()
        self.manual_seed(seed)

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> None:
        self._offset = offset


gpus = Gpus()
recorder: Any = None  # of this process, from ``install`` on
_library: Any = None  # a ctypes.CDLL, from ``start`` on
_callback = None  # keeps the callback alive, because only the library refers to it


def start(library: ctypes.CDLL) -> None:
    """Give torch its GPUs: of an unknown kind, until ``install``."""
    global _library
    _library = library
    _library.memlab_install(gpus.count, native.CALLBACK())


def install(the_recorder, the_gpus: Gpus) -> None:
    """Describe the GPUs. ``the_recorder`` receives events, waits and queries of memory."""
    global recorder, gpus, _callback
    recorder, gpus = the_recorder, the_gpus
    torch.cuda.default_generators = tuple(map(Generator, range(gpus.count)))
    _callback = native.CALLBACK(_told)
    _library.memlab_install(gpus.count, _callback)


def _told(what: int, event: int, stream: int) -> None:
    """Record what the native library reports."""
    if what == native.RECORD:
        recorder.record_event(event, stream)
    elif what == native.STREAM_WAITS:
        recorder.counter.stream_waits(stream, event)
    else:
        recorder.synchronize(event if what == native.HOST_WAITS_FOR_EVENT else None)


def current() -> int:
    """Index of the current GPU."""
    return _library.memlab_device()


def index_on_node(index: int) -> int | None:
    """Return the index of a GPU of this process among all of the node: the script can have chosen which ones it sees.
    ``None``: not known."""
    seen = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus.count)))).split(",")
    return int(seen[index]) if index < len(seen) and seen[index].isdigit() else None


def with_index(options: dict[str, Any]) -> dict[str, Any]:
    """Replace the device "cuda" in the options of an operator by the current GPU."""
    place = options.get("device")
    if place is None or place.type != NAME or place.index is not None:
        return options
    return {**options, "device": torch.device(NAME, current())}


def exchange(index: int) -> int:
    """Make ``index`` the current GPU, unless it is negative; return the one before."""
    return _library.memlab_exchange_device(index)


@contextmanager
def on(index: int) -> Iterator[None]:
    """Make ``index`` the current GPU for a while."""
    before = exchange(index)
    try:
        yield
    finally:
        exchange(before)


def current_stream(index: int = -1) -> int:
    """Number of this thread's current stream on a GPU, by default on the current one. 0 is the default stream; the
    allocator keeps a pool for each stream."""
    return _library.memlab_stream(index)


def set_stream(index: int, number: int) -> None:
    """Make a stream the current one of its GPU, and its GPU the current one."""
    _library.memlab_set_stream(index, number)


def of(tensor: torch.Tensor) -> torch.device:
    """Return the device of a tensor. For that of a fake one, torch would call the dispatch modes."""
    return tensor.fake_device if type(tensor) is FakeTensor else tensor.device


def is_on(tensor: torch.Tensor) -> bool:
    return of(tensor).type == NAME


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the storage of the tensor was created as page-locked host memory."""
    return getattr(tensor.untyped_storage(), "_memlab_pinned", False)
