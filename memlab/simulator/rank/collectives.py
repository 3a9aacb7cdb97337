"""Collectives among ranks that are all like this one: no data moves, but NCCL's effects on memory stay.

ProcessGroupNCCL keeps the tensors of an asynchronous collective alive until ``Work::wait``, which calls
``stashed_for_allocator_safety_->unstash()`` (the default since PyTorch 2.8, in place of ``record_stream``). This
changes memory when nothing else references the tensors: with parameters on the host, ZeRO-3 gathers from temporary
copies of its shards.
"""

import functools
import os
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, FakeWork
from torch.distributed import device_mesh, distributed_c10d

from memlab.meters.nested_tensors import tensors_in
from memlab.simulator.rank import device, mailbox, point_to_point
from memlab.simulator.rank.values import Values

_BACKEND = "memlab_fake"


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
    """Handle of a finished collective. It holds the tensors of the collective until ``wait``. ``number``: of the
    collective among those that are counted; -1: it is not counted."""

    def __init__(self, work, tensors, number: int = -1):
        self._work = work
        self._tensors = tensors
        self._number = number

    def wait(self, *args) -> bool:
        self._tensors = None
        device.recorder.counter.wait_for_collective(self._number)
        return self._work.wait(*args)

    def __getattr__(self, name):
        return getattr(self._work, name)


def install() -> None:
    """Patch torch.distributed. Call before importing DeepSpeed, which keeps references to the collectives."""

    def create(options, backend_options):
        return FakeProcessGroup._create_internal(options.group_rank, options.group_size, backend_options)

    dist.Backend.register_backend(_BACKEND, create, extended_api=True, devices=["cpu", device.NAME])
    for name in _WITH_WORK:
        setattr(dist, name, _holding(getattr(dist, name)))
    for module in (dist, distributed_c10d, device_mesh):
        module.init_process_group = _init_process_group
        module.new_group = _new_group
        module.broadcast_object_list = _broadcast_object_list
        module.batch_isend_irecv = _batch_isend_irecv
        module.get_backend = lambda group=None: "nccl"
        module.is_nccl_available = lambda: True


_init, _new, _broadcast_objects = dist.init_process_group, dist.new_group, dist.broadcast_object_list
_batch = dist.batch_isend_irecv


@functools.wraps(_init)
def _init_process_group(
    backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, *args, device_id=None, **options
) -> None:
    """Create the default group of ``world_size`` ranks; only this rank exists, whatever backend is asked for.

    With ``device_id`` NCCL connects the ranks of this and of each later group when it is made.
    """
    _init(
        f"cpu:{_BACKEND},{device.NAME}:{_BACKEND}",
        rank=rank if rank >= 0 else int(os.environ["RANK"]),
        world_size=world_size if world_size > 0 else int(os.environ["WORLD_SIZE"]),
        store=dist.HashStore(),
    )
    mailbox.note_rank(str(dist.get_rank()))  # launchers in Python do not set RANK
    libraries = device.recorder.libraries
    libraries.connects_at_once = device_id is not None
    libraries.made(dist.group.WORLD, backend)


@functools.wraps(_new)
def _new_group(ranks=None, timeout=None, backend=None, pg_options=None, *args, group_desc=None, **options):
    group = _new(ranks, group_desc=group_desc)
    device.recorder.libraries.made(group, backend)
    return group


@functools.wraps(_broadcast_objects)
def _broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None) -> None:
    """Send objects as torch does. If the sender does not run, a rank keeps its own."""
    _runs_in(group)
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    sender = src or 0 if group_src is None else ranks[group_src]
    address = f"group{abs(hash(tuple(ranks)))}"  # the hash of integers is the same in each process
    if dist.get_rank() == sender:
        _broadcast_objects(object_list, src=src, group=group, device=device, group_src=group_src)
        mailbox.send(sender, address, pickle.dumps(list(object_list)))
    elif (content := mailbox.receive(sender, address)) is not None:
        object_list[:] = pickle.loads(content)


@functools.wraps(_batch)
def _batch_isend_irecv(p2p_op_list: list) -> list:
    """Send before receiving: here a rank waits for what it receives as soon as it asks for it."""
    works = _batch(sorted(p2p_op_list, key=lambda each: each.op is not dist.isend))
    return [_Work(work, [each.tensor for each in p2p_op_list]) for work in works]


def _runs_in(group) -> None:
    """Note that a collective runs in a group, the default one if it is ``None``: NCCL makes its communicator."""
    device.recorder.libraries.runs_in(group or dist.group.WORLD)


def _holding(collective):
    @functools.wraps(collective)
    def call(*args, **kwargs):
        work = collective(*args, **kwargs)
        counter = device.recorder.counter
        if work is None:  # synchronous: the current stream waits immediately
            counter.wait_for_collective(counter.last_collective())
            return None
        return _Work(work, (args, kwargs), counter.last_collective())

    return call


def answer(func, args: tuple, values: Values) -> Any:
    """Return the result of a c10d operator, and carry known values as if every rank had those of this one."""
    name = func._schema.name.removeprefix("c10d::").strip("_")
    if name.startswith("allgather"):
        for outs, source in zip(*_pairs(args), strict=True):
            _gather(outs, source, values)
    elif name in ("send", "recv"):
        point_to_point.exchange(func, args, values)
    elif name.startswith(("allreduce", "reduce")) and "scatter" not in name:
        _reduce(args, values)
    elif not name.startswith("broadcast"):
        for tensor in tensors_in(args[0]):
            values.forget(tensor)
    work = FakeWork().boxed()
    return work if len(func._schema.returns) == 1 else (args[0], work)


def _pairs(args: tuple) -> tuple[list, list]:
    """The outputs of an all-gather, and the input that each of them gathers."""
    outs, sources = args[:2]
    return ([outs], [sources]) if isinstance(outs, torch.Tensor) else (outs, sources)


def _gather(outs, source: torch.Tensor, values: Values) -> None:
    known = values.of(source)
    for out in tensors_in(outs):
        if known is None:
            values.forget(out)
        else:
            values.write(out, known.reshape(-1).repeat(out.numel() // max(source.numel(), 1)).reshape(out.shape))


def _reduce(args: tuple, values: Values) -> None:
    group, operation = (arg for arg in args if isinstance(arg, torch.ScriptObject))
    if operation.op() != 0:  # c10d::ReduceOp::RedOpType::SUM
        return
    group = dist.ProcessGroup.unbox(group)
    for tensor in tensors_in(args[0]):
        known = values.of(tensor)
        if known is not None:
            known.mul_(group.size())
