"""Stand-ins for libraries and kernels that need a GPU, one file for each.

A stand-in says what it replaces, what it allocates and what it counts. Everything else in a shadow run is the installed
DeepSpeed, transformers, accelerate and torch, unchanged. To add a stand-in, add a file here that defines
``stand_in(gpu)``, which returns a :class:`StandIn`, or ``None`` where the GPU or the environment needs none. No other
file changes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from torch._ops import OpOverload
from torch.utils.flop_counter import register_flop_formula

from memlab.meters import import_hook
from memlab.simulator.constants import GpuModel
from memlab.simulator.rank.kernel import Kernel
from memlab.simulator.rank.recorder import Recorder
from memlab.simulator.rank.unpredictable import Package, UnpredictableError, offer

__all__ = ["GpuModel", "Kernel", "Package", "Recorder", "StandIn", "add_kernels", "install", "install_own"]


@dataclass(frozen=True)
class StandIn:
    """Replacement for a library, or for kernels of torch.

    changes      module -> function(module, recorder) that changes the module right after it was imported
    packages     packages that are not installed, with what programs import from them
    kernels      operator -> what its CUDA kernel allocates and counts
    """

    changes: Mapping[str, Callable[..., None]] = field(default_factory=dict)
    packages: Sequence[Package] = ()
    kernels: Mapping[OpOverload, Kernel] = field(default_factory=dict)


def install(recorder: Recorder, gpu: GpuModel) -> None:
    """Install every stand-in that a run on ``gpu`` needs."""
    for module in iter_modules(__path__):
        stand_in = import_module(f"{__name__}.{module.name}").stand_in(gpu)
        if stand_in is not None:
            _install(stand_in, recorder)


def install_own(recorder: Recorder, gpu: GpuModel, files: Sequence[Path]) -> None:
    """Install stand-ins of the user's own, which take the place of memlab's."""
    for file in files:
        spec: Any = spec_from_file_location(f"{__name__}.own.{file.stem}", file)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        function = getattr(module, "stand_in", None)
        if function is None or len(signature(function).parameters) != 1:
            raise UnpredictableError(f"{file} is no stand-in: it has no function stand_in(gpu)")
        if (stand_in := function(gpu)) is not None:
            _install(stand_in, recorder)


def _install(stand_in: StandIn, recorder: Recorder) -> None:
    offer(stand_in.packages)
    for module, change in stand_in.changes.items():
        import_hook.after(module, partial(change, recorder=recorder))
    add_kernels(recorder, stand_in.kernels)


def add_kernels(recorder: Recorder, kernels: Mapping[OpOverload, Kernel]) -> None:
    """Describe kernels of operators, also of a library that has just been imported."""
    for operator, kernel in kernels.items():
        recorder.kernels[operator] = kernel
        if kernel.flops is not None:
            register_flop_formula(operator.overloadpacket)(kernel.flops)
