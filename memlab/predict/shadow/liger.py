"""liger-kernel where no Triton kernel can run: its own code in Python makes every tensor, its kernels are not launched.

The kernels write into tensors that exist already, so nothing is missed.
"""

import sys
from types import FunctionType, ModuleType

import liger_kernel.transformers  # noqa: F401  (everything that it patches models with)
from triton.runtime.jit import KernelInterface

from memlab.predict.events import Trace
from memlab.predict.shadow import device


def install(trace: Trace) -> None:
    trace.smooth_from = None  # the fused loss works in chunks of a power of two tokens
    KernelInterface.__getitem__ = lambda kernel, grid: _launch_nothing
    for name, module in list(sys.modules.items()):
        if name.startswith("liger_kernel.ops."):
            _take_the_device_for_cuda(module)


def _launch_nothing(*args, **kwargs) -> None:
    pass


def _take_the_device_for_cuda(module: ModuleType) -> None:
    """Several of liger's functions compare a tensor's device with "cuda", and hold other memory anywhere else."""
    for function in vars(module).values():
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            constants = tuple(device.NAME if value == "cuda" else value for value in function.__code__.co_consts)
            function.__code__ = function.__code__.replace(co_consts=constants)
