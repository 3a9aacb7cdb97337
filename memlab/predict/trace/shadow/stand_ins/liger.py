"""liger-kernel without Triton: its Python code allocates every tensor as usual, its kernels are only counted.

The kernels write into existing tensors, so no allocation is missed.
"""

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType

import torch

from memlab.core.config import Config
from memlab.predict.constants import Generation
from memlab.predict.trace.memory_kinds import LOGITS
from memlab.predict.trace.shadow import device
from memlab.predict.trace.shadow.counting import Counter, tensors_in
from memlab.predict.trace.shadow.kernel import Kernel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: Generation) -> StandIn | None:
    if config.kernels.implementation != "liger":
        return None
    return StandIn(
        replace=_replace_launches,
        # Each loss compares its gradient with 1. Unless they are equal, it launches a kernel that scales in place.
        kernels={torch.ops.aten.equal.default: Kernel(answer=lambda first, second: False)},
        kinds=(("fused_linear_cross_entropy.py", "", LOGITS),),
        smooth_from=None,  # the fused loss works in chunks of a power of two of tokens
    )


def _replace_launches(recorder: Recorder) -> None:
    import liger_kernel.transformers  # noqa: F401  (everything that it patches models with)
    from triton.runtime.jit import KernelInterface

    KernelInterface.__getitem__ = lambda kernel, grid: _launch(recorder.counter)
    for name, module in list(sys.modules.items()):
        if name.startswith("liger_kernel.ops."):
            _take_the_device_for_cuda(module)


def _launch(counter: Counter) -> Callable[..., None]:
    def count(*args, **kwargs) -> None:
        counter.library_call(tensors_in((args, kwargs)))

    return count


def _take_the_device_for_cuda(module: ModuleType) -> None:
    """Replace the constant "cuda" by the simulated device's name in the functions of a liger module.

    Several functions compare a tensor's device with "cuda" and allocate differently on other devices.
    """
    for function in vars(module).values():
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            constants = tuple(device.NAME if value == "cuda" else value for value in function.__code__.co_consts)
            function.__code__ = function.__code__.replace(co_consts=constants)
