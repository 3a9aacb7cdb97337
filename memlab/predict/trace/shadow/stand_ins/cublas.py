"""cuBLAS and cublasLt: their workspaces, which torch allocates at a thread's first matrix product on a stream of a GPU,
and at its first one that adds a bias, and never frees.

Source: ``getCUDABlasLtWorkspace`` and ``getCurrentCUDABlasHandle`` in ``aten/src/ATen/cuda/CublasHandlePool.cpp``, and
``isInputCompliesAddmmCudaLt`` in ``aten/src/ATen/native/cuda/Blas.cpp``.
"""

import threading
from functools import cache

import torch

from memlab.predict.constants import CUBLASLT_WORKSPACE
from memlab.predict.outside.appearances import HANDLE
from memlab.predict.trace.shadow import device
from memlab.predict.trace.shadow.stand_ins import Config, GpuModel, Kernel, StandIn

_aten = torch.ops.aten
_PRODUCTS = [
    *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default),
    *(_aten.mm.out, _aten.addmm.out, _aten.bmm.out, _aten.baddbmm.out),
]


def _adds_bias(first: torch.Tensor, *factors: torch.Tensor, beta: float = 1, **options) -> bool:
    """Whether a product of matrices is one of cublasLt's: it adds a row to each row."""
    return first.dim() == 1 and beta == 1 and len(factors) == 2 and min(factors[1].shape) > 1


class Workspaces:
    """Workspaces of the products of all threads."""

    def __init__(self, gpu: GpuModel):
        self._gpu = gpu
        self._held: set[tuple[int, int | None, int, int]] = set()

    def of_product(self, adds_bias: bool) -> list[int]:
        """Return the bytes of each workspace that a product of this thread is the first to need, on this stream."""
        thread, gpu_number = threading.get_ident(), device.recorder.memory.number_of(device.current())
        needed = [self._gpu.cublas_workspace, *[CUBLASLT_WORKSPACE] * adds_bias]
        new = [each for each in needed if (thread, gpu_number, device.current_stream(), each) not in self._held]
        if new:
            self._held.update((thread, gpu_number, device.current_stream(), each) for each in new)
            device.recorder.libraries.note(HANDLE, (thread, gpu_number))
        return new


workspaces_on = cache(Workspaces)
"""``workspaces_on(gpu)``: the workspaces of this process, also for libraries that call torch's products in C++."""


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    def kept(*args, **options) -> list[int]:
        return workspaces_on(gpu).of_product(_adds_bias(*args, **options))

    return StandIn(kernels=dict.fromkeys(_PRODUCTS, Kernel(kept=kept)))
