"""Triton: its kernels are only counted. They write into existing tensors, so no allocation is missed."""

from functools import partial
from types import ModuleType

from memlab.attach.nested_tensors import tensors_in
from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(changes={"triton.runtime.jit": _launch_nothing})


def _launch_nothing(jit: ModuleType, recorder: Recorder) -> None:
    def launch(function: str, *args, **options) -> None:
        recorder.library_call(function, tensors_in((args, options)))

    jit.KernelInterface.__getitem__ = lambda kernel, grid: partial(launch, getattr(kernel, "__name__", "triton"))
