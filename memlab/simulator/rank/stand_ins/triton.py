"""Triton: its kernels are only counted. They write into existing tensors, so no allocation is missed.

liger-kernel needs nothing else: its Python code allocates every tensor as usual. Its fused loss works in chunks.
"""

from functools import partial
from types import ModuleType

from memlab.meters.nested_tensors import tensors_in
from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(changes={"triton.runtime.jit": _launch_nothing})


def _launch_nothing(jit: ModuleType, recorder: Recorder) -> None:
    def launch(function: str, *args, **options) -> None:
        recorder.library_call(function, tensors_in((args, options)))

    jit.KernelInterface.__getitem__ = lambda kernel, grid: partial(launch, getattr(kernel, "__name__", "triton"))
