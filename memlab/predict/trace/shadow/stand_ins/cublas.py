"""cuBLAS: its workspace, which torch allocates at a thread's first matrix product on a stream of a GPU and never frees.

Source: ``getCUDABlasLtWorkspace`` and ``getCurrentCUDABlasHandle`` in ``aten/src/ATen/cuda/CublasHandlePool.cpp``.
"""

import threading

import torch

from memlab.predict.outside.appearances import HANDLE
from memlab.predict.trace.shadow import device
from memlab.predict.trace.shadow.stand_ins import Config, GpuModel, Kernel, StandIn

_aten = torch.ops.aten
_PRODUCTS = [
    *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default),
    *(_aten.mm.out, _aten.addmm.out, _aten.bmm.out, _aten.baddbmm.out),
]


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    handles: set[tuple[int, int | None, int]] = set()

    def workspace(*args, **options) -> list[int]:
        thread, gpu_number = threading.get_ident(), device.recorder.memory.number_of(device.current())
        handle = (thread, gpu_number, device.current_stream())
        if handle in handles:
            return []
        handles.add(handle)
        device.recorder.libraries.note(HANDLE, (thread, gpu_number))
        return [gpu.cublas_workspace]

    return StandIn(kernels=dict.fromkeys(_PRODUCTS, Kernel(kept=workspace, owner="cuBLAS")))
