"""Collectives that move nothing, and hold what NCCL's would hold.

ProcessGroupNCCL keeps the tensors of an asynchronous collective alive until its work is waited for (``Work::wait``
calls ``stashed_for_allocator_safety_->unstash()``; the default since PyTorch 2.8 in place of ``record_stream``). It is
seen where nobody else holds them: with parameters on the host, ZeRO-3 gathers from copies of its shards that live only
there.
"""

import functools

import torch.distributed as dist

from memlab.predict.shadow import device
from memlab.predict.shadow.device import NAME

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
    """A work that is done, and holds its tensors until somebody waits for it."""

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
    """To be called before DeepSpeed is imported: it keeps these functions for itself."""
    for name in _WITH_WORK:
        setattr(dist, name, _holding(getattr(dist, name)))


def start(rank: int, world_size: int) -> None:
    """The default process group, of a rank that is alone."""
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
        if work is None:  # not asynchronous: the stream waits at once
            counter = device.counter()
            counter.wait_for_collective(counter.last_collective())
            return None
        return _Work(work, (args, kwargs))

    return call
