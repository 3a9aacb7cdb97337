"""Collectives that move no data, but keep tensors alive as long as NCCL would.

ProcessGroupNCCL keeps the tensors of an asynchronous collective alive until ``Work::wait``, which calls
``stashed_for_allocator_safety_->unstash()`` (the default since PyTorch 2.8, in place of ``record_stream``). This
changes memory when nothing else references the tensors: with parameters on the host, ZeRO-3 gathers from temporary
copies of its shards.
"""

import functools

import torch.distributed as dist

from memlab.predict.trace.shadow import device
from memlab.predict.trace.shadow.device import NAME

BACKEND = "memlab_fake"

_WITH_WORK = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
)


class _Work:
    """Handle of a finished collective. It holds the tensors of the collective until ``wait``."""

    def __init__(self, work, tensors):
        self._work = work
        self._tensors = tensors
        self._number = device.counter().last_collective()

    def wait(self, *args) -> bool:
        self._tensors = None
        device.counter().wait_for_collective(self._number)
        return self._work.wait(*args)

    def __getattr__(self, name):
        return getattr(self._work, name)


def install() -> None:
    """Patch the collectives of torch.distributed. Call before importing DeepSpeed, which keeps references to them."""
    for name in _WITH_WORK:
        setattr(dist, name, _holding(getattr(dist, name)))


def start(rank: int, world_size: int) -> None:
    """Create the default process group of ``world_size`` ranks; only this rank exists."""
    from torch._C._distributed_c10d import FakeProcessGroup
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def create(options, backend_options):
        return FakeProcessGroup._create_internal(options.group_rank, options.group_size, backend_options)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", NAME])
    backends = f"cpu:{BACKEND},{NAME}:{BACKEND}"
    dist.init_process_group(backends, rank=rank, world_size=world_size, store=FakeStore())


def _holding(collective):
    @functools.wraps(collective)
    def call(*args, **kwargs):
        work = collective(*args, **kwargs)
        if work is None:  # synchronous: the current stream waits immediately
            counter = device.counter()
            counter.wait_for_collective(counter.last_collective())
            return None
        return _Work(work, (args, kwargs))

    return call
