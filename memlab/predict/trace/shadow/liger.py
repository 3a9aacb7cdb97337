"""liger-kernel without Triton: its Python code allocates every tensor as usual, its kernels are only counted.

The kernels write into existing tensors, so no allocation is missed.
"""

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType

import liger_kernel.transformers  # noqa: F401  (everything that it patches models with)
from triton.runtime.jit import KernelInterface

from memlab.predict.trace.shadow import device
from memlab.predict.trace.shadow.counting import Counter
from memlab.predict.trace.shadow.trace import Recorder


def install(recorder: Recorder) -> None:
    recorder.trace.smooth_from = None  # the fused loss works in chunks of a power of two of tokens
    KernelInterface.__getitem__ = lambda kernel, grid: _launch(recorder.counter)
    for name, module in list(sys.modules.items()):
        if name.startswith("liger_kernel.ops."):
            _take_the_device_for_cuda(module)


def _launch(counter: Counter) -> Callable[..., None]:
    def count(*args, **kwargs) -> None:
        counter.compiled("Triton", (*args, *kwargs.values()))

    return count


def _take_the_device_for_cuda(module: ModuleType) -> None:
    """Replace the constant "cuda" by the simulated device's name in the functions of a liger module.

    Several functions compare a tensor's device with "cuda" and allocate differently on other devices.
    """
    for function in vars(module).values():
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            constants = tuple(device.NAME if value == "cuda" else value for value in function.__code__.co_consts)
            function.__code__ = function.__code__.replace(co_consts=constants)
