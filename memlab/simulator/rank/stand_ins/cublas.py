"""cuBLAS and cublasLt: their workspaces, which torch allocates at a thread's first matrix product on a stream of a GPU,
and at its first one that adds a bias, and never frees.

Source: ``getCUDABlasLtWorkspace`` and ``getCurrentCUDABlasHandle`` in ``aten/src/ATen/cuda/CublasHandlePool.cpp``, and
``isInputCompliesAddmmCudaLt`` in ``aten/src/ATen/native/cuda/Blas.cpp``.
"""

import threading

import torch

from memlab.simulator.constants import CUBLASLT_WORKSPACE
from memlab.simulator.outside.appearances import HANDLE
from memlab.simulator.rank import device
from memlab.simulator.rank.stand_ins import GpuModel, Kernel, StandIn

_aten = torch.ops.aten
_PRODUCTS = [
    *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default),
    *(_aten.mm.out, _aten.addmm.out, _aten.bmm.out, _aten.baddbmm.out),
]


def _adds_bias(first: torch.Tensor, *factors: torch.Tensor, beta: float = 1, **options) -> bool:
    """Whether a product of matrices is one of cublasLt's: it adds a row to each row."""
    return first.dim() == 1 and beta == 1 and len(factors) == 2 and min(factors[1].shape) > 1


def stand_in(gpu: GpuModel) -> StandIn:
    held: set[tuple[int, int | None, int, int]] = set()

    def workspaces(*args, **options) -> list[int]:
        thread, gpu_number = threading.get_ident(), device.recorder.memory.number_of(device.current())
        needed = [gpu.cublas_workspace, *[CUBLASLT_WORKSPACE] * _adds_bias(*args, **options)]
        new = [each for each in needed if (thread, gpu_number, device.current_stream(), each) not in held]
        if new:
            held.update((thread, gpu_number, device.current_stream(), each) for each in new)
            device.recorder.libraries.note(HANDLE, (thread, gpu_number))
        return new

    return StandIn(kernels=dict.fromkeys(_PRODUCTS, Kernel(kept=workspaces, owner="cuBLAS")))
