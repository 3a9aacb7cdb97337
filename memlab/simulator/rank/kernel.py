"""Effects of a CUDA kernel that the result of its operator does not show: memory, further launches, FLOPs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from memlab.simulator.trace.reduction_scratch import Scratch

Blocks = Sequence[int | Scratch]
"""Device memory that a kernel requests, one entry for each block: its bytes, or the sum whose partial sums it holds."""


def _nothing(*args: Any, **options: Any) -> tuple[()]:
    return ()


@dataclass(frozen=True)
class Kernel:
    """The CUDA kernel of an operator. Each function receives the arguments of the operator's call.

    temporaries  blocks that are allocated before the result and freed after it
    workspaces   blocks that are allocated after the result and freed at once
    further      blocks that are allocated after the workspaces were freed, and freed at once
    kept         blocks that are allocated after the result and never freed
    spare        most bytes of a workspace that the kernel can do without; it receives the result before the arguments
    launches     kernels that run before the operator's own: for each, the bytes of every tensor that it reads or writes
    flops        FLOPs of the call, with shapes in place of tensors (a formula of ``torch.utils.flop_counter``)
    owner        who requests the blocks, for display; the operator unless given
    keeper       who requests the blocks that are kept, for display; the owner unless given
    has_tensors  whether temporaries, workspaces and further blocks are tensors, for display; else they are memory
                 without a tensor

    ``last_result_first``: several results are allocated in the opposite order.
    """

    temporaries: Callable[..., Blocks] = _nothing
    workspaces: Callable[..., Blocks] = _nothing
    further: Callable[..., Blocks] = _nothing
    kept: Callable[..., Blocks] = _nothing
    spare: Callable[..., int] = lambda *args, **options: 0
    launches: Callable[..., Sequence[Sequence[int]]] = _nothing
    flops: Callable[..., int] | None = None
    owner: str = ""
    keeper: str = ""
    has_tensors: bool = False
    last_result_first: bool = False
