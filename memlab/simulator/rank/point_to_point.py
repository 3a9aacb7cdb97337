"""What a rank sends to one other rank, as the stages of a pipeline do. Such ranks differ, so all of them run.

Stages tell each other shapes in integers, objects included, so the values of integers arrive. Floats have no values,
and nobody waits for them.
"""

import ctypes
import os

import torch
import torch.distributed as dist

from memlab.simulator.rank import launchers, mailbox
from memlab.simulator.rank.unpredictable import UnpredictableError
from memlab.simulator.rank.values import MOST_BYTES, Values
from memlab.simulator.simulation import MOST_RANKS, ask_for_all_ranks


def exchange(func, args: tuple, values: Values) -> None:
    """Send or receive the tensors of a call of ``c10d::send`` or ``c10d::recv_``."""
    tensors, group, peer, tag = args
    _need_all_ranks()
    here, there = dist.get_rank(), dist.get_global_rank(dist.ProcessGroup.unbox(group), peer)
    sends = func._schema.name == "c10d::send"
    for tensor in tensors:
        if not tensor.is_floating_point() and tensor.numel() * tensor.element_size() <= MOST_BYTES:
            (_send if sends else _receive)(tensor, *((here, there) if sends else (there, here)), tag, values)
        elif not sends:
            values.forget(tensor)


def _need_all_ranks() -> None:
    """Start the command anew with all ranks, unless they run. Raises :class:`UnpredictableError` if they are many."""
    ranks = dist.get_world_size()
    if ranks > min(MOST_RANKS, launchers.ranks_of_node(os.environ) or ranks):
        raise UnpredictableError(
            f"a rank sends to one other, so the {ranks} ranks differ (stages of a pipeline, a ring). Such ranks are "
            f"predicted on one node, and at most {MOST_RANKS} of them. Predict with fewer"
        )
    if ranks > 2 and launchers.ALL_RANKS not in os.environ:
        ask_for_all_ranks()


def _send(tensor: torch.Tensor, source: int, target: int, tag: int, values: Values) -> None:
    """Send the values; nothing if they are not known."""
    known = values.of(tensor)
    known = torch.empty(0) if known is None else known.contiguous()
    mailbox.send(source, f"{target}-{tag}", ctypes.string_at(known.data_ptr(), known.numel() * known.element_size()))


def _receive(tensor: torch.Tensor, source: int, target: int, tag: int, values: Values) -> None:
    """Wait for the values. Raises :class:`UnpredictableError` if the sender ends without them."""
    content = mailbox.receive(source, f"{target}-{tag}")
    if content is None:
        raise UnpredictableError(f"rank {target} waits for integers of rank {source}, which has ended")
    if content:
        values.write(tensor, torch.frombuffer(bytearray(content), dtype=tensor.dtype).view(tensor.shape))
    else:
        values.forget(tensor)
