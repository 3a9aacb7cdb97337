"""The simulated device: torch's PrivateUse1 backend without kernels, and DeepSpeed's accelerator on top of it.

Its tensors are fake (shapes, dtypes and storages, no data), so all code runs that does not read values. The device
has everything that affects memory on a real GPU: streams, asynchronous events and pinned host memory.
"""

import contextlib

import torch
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "shadow"
DEVICE = f"{NAME}:0"

_UNKNOWN_GIB = 80.0
"""Device memory (GiB) when the hardware entry has none. DeepSpeed uses it only to decide whether ZeRO stages 1 and 2
flatten the weights on the device."""


class _Module(_DummyBackendModule):
    """The module that torch imports as ``torch.shadow``."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device=None) -> torch.Tensor:
        return torch.empty(16, dtype=torch.uint8)

    def set_rng_state(self, state, device=None) -> None:
        pass

    def set_device(self, device) -> None:
        pass


class Stream:
    """A stream, identified by its number. The allocator keeps a pool for each stream. 0 is the default stream."""

    current: "Stream"

    def __init__(self, number: int):
        self.number = number

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: "Event") -> None:
        _recorder.counter.stream_waits(self.number, event)

    def query(self) -> bool:
        return True

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        _recorder.synchronize()


class Event:
    """A CUDA-like event. ``query`` always returns false, so DeepSpeed waits for the event, as it does on a GPU.

    After the wait, everything that the host had launched before ``record`` is done, and nothing launched later.
    """

    def __init__(self, **options):
        self.requests = 0

    def record(self, stream: Stream | None = None) -> None:
        self.requests = _recorder.requests
        _recorder.counter.record(self, (stream or Stream.current).number)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or Stream.current).wait_event(self)

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        _recorder.synchronize(self)


DEFAULT_STREAM = Stream.current = Stream(0)
_recorder = None
_streams = 0


def counter():
    """Counter of this rank's work (shadow/counting.py)."""
    return _recorder.counter


def new_stream(*args, **options) -> Stream:
    global _streams
    _streams += 1
    return Stream(_streams)


@contextlib.contextmanager
def on_stream(stream: Stream | None):
    before, Stream.current = Stream.current, stream or DEFAULT_STREAM
    try:
        yield
    finally:
        Stream.current = before


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the storage of the tensor was created as page-locked host memory."""
    return getattr(tensor.untyped_storage(), "_memlab_pinned", False)


def install(recorder, rank: int, world_size: int, memory_gib: float | None) -> None:
    """Register the device with torch, torch.distributed and DeepSpeed in this process. It cannot be undone.

    ``recorder`` receives synchronisations, ``empty_cache`` calls and ``record_stream`` calls.
    """
    global _recorder
    _recorder = recorder
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=_Module())
    from memlab.predict.trace.shadow import collectives

    torch.Tensor.record_stream = lambda tensor, stream: recorder.record_stream(tensor, stream.number)
    collectives.start(rank, world_size)
    _install_accelerator(recorder, world_size, memory_gib)


def _install_accelerator(recorder, world_size: int, memory_gib: float | None) -> None:
    from deepspeed.accelerator import set_accelerator

    from memlab.predict.trace.shadow.accelerator import Accelerator

    total_bytes = int((memory_gib or _UNKNOWN_GIB) * 2**30)
    set_accelerator(Accelerator(recorder, world_size, total_bytes))
