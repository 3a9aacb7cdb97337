"""A device that is not there: torch's PrivateUse1 backend without a kernel, and DeepSpeed's accelerator on top of it.

Tensors on it are fake (shapes, dtypes and storages, no bytes), so everything runs that does not read a value. The device has
what decides where bytes go on a real GPU: streams of its own, asynchronous events, pinned host memory.
"""

import contextlib

import torch
import torch.distributed as dist
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "shadow"
DEVICE = f"{NAME}:0"


class _Module(_DummyBackendModule):
    """What torch looks up as ``torch.shadow``."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device=None) -> torch.Tensor:
        return torch.empty(16, dtype=torch.uint8)

    def set_rng_state(self, state, device=None) -> None:
        pass

    def set_device(self, device) -> None:
        pass


class Stream:
    """A stream is a number: the allocator keeps a pool for each. 0 is the default stream."""

    current: "Stream"

    def __init__(self, number: int):
        self.number = number

    def wait_stream(self, other: "Stream") -> None:
        pass

    def wait_event(self, event: "Event") -> None:
        pass

    def query(self) -> bool:
        return True

    def record_event(self, event: "Event | None" = None) -> "Event":
        return event or Event()

    def synchronize(self) -> None:
        _recorder.synchronize()


class Event:
    """Nothing runs, so no event is ever seen to have completed by itself: DeepSpeed waits for it, as it does on a GPU."""

    def __init__(self, **options):
        pass

    def record(self, stream: Stream | None = None) -> None:
        pass

    def wait(self, stream: Stream | None = None) -> None:
        pass

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        _recorder.synchronize()


DEFAULT_STREAM = Stream.current = Stream(0)
_recorder = None
_streams = 0


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


def install(recorder, rank: int, world_size: int) -> None:
    """Make the device known to torch, torch.distributed and DeepSpeed in this process. It cannot be undone.

    ``recorder`` is told of synchronisations, of emptied caches and of tensors that another stream uses.
    """
    global _recorder
    _recorder = recorder
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=_Module())
    torch.Tensor.record_stream = lambda tensor, stream: recorder.record_stream(tensor, stream.number)
    _install_process_group(rank, world_size)
    _install_accelerator(recorder, world_size)


def _install_process_group(rank: int, world_size: int) -> None:
    from torch._C._distributed_c10d import FakeProcessGroup
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def create(options, backend_options):
        return FakeProcessGroup._create_internal(options.group_rank, options.group_size, backend_options)

    dist.Backend.register_backend("shadow_fake", create, extended_api=True, devices=["cpu", NAME])
    store, backend = FakeStore(), f"cpu:shadow_fake,{NAME}:shadow_fake"
    dist.init_process_group(backend, rank=rank, world_size=world_size, store=store)


def _install_accelerator(recorder, world_size: int) -> None:
    from deepspeed.accelerator import set_accelerator

    from memlab.predict.shadow.accelerator import Accelerator

    set_accelerator(Accelerator(recorder, world_size))
