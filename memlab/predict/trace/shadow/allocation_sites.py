"""Allocation sites: the place in the code that made an allocation, and the purpose of the memory."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from types import CodeType

import torch
from torch._ops import OpOverloadPacket
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from memlab.predict.trace.memory_kinds import KERNEL_SCRATCH, PARAMETER_GRADIENT, SMALL, kind_of
from memlab.predict.trace.trace_format import Site

SMALL_BYTES = 64 << 10
"""Allocations below this share one site: they are most of the events and almost none of the bytes."""


def _folder_of(package: str) -> str:
    """The folder of an installed package, with a separator at its end."""
    return os.path.join(os.path.dirname(find_spec(package).origin), "")


_TORCH, _DEEPSPEED = _folder_of("torch"), _folder_of("deepspeed")

_NOT_THE_CALLER = (
    _TORCH,
    _folder_of("memlab"),
    _folder_of("accelerate"),
    _folder_of("transformers") + "trainer.py",
    _DEEPSPEED + "runtime/zero/linear.py",
    _DEEPSPEED + "runtime/engine.py",
    _DEEPSPEED + "utils/",
    contextlib.__file__,
    functools.__file__,
    "<",
)
"""Path prefixes of code that only passes calls on: the caller that explains the allocation is further out on the stack.
The prefixes are whole paths, because a parent folder may have any name, also ``memlab``."""

_NOT_THE_READER = (_TORCH, _folder_of("memlab"), contextlib.__file__, functools.__file__, "<")
"""Likewise, for code that reads a value."""

_TORCH_OPTIMIZERS = _TORCH + "optim/"


_NAMES = {"_local_scalar_dense": "item", "_unique2": "unique"}
"""Operator -> the name under which programs call it."""


class AllocationSites:
    """Numbers the distinct sites of a trace: a number is an index in ``sites``."""

    def __init__(self, sites: list[Site]):
        self.phase = ""
        self.kinds: tuple[tuple[str, str, str], ...] = ()  # of libraries' allocations (stand_ins.StandIn)
        self._vocabulary = 0
        self._modules = [""]  # stack of the names of modules whose forward runs
        self._sites = sites
        self._numbers: dict[Site, int] = {}
        self._labels: dict[CodeType, str | None] = {}
        self._readers: dict[CodeType, str | None] = {}

    def of(self, tensor: torch.Tensor, nbytes: int, func) -> int:
        """Return the number of the site that made ``tensor``."""
        if nbytes < SMALL_BYTES:
            return self._number(Site(SMALL, "", "", "", "", ()))
        where, function = _innermost(self._label)
        if not where:
            node = torch._C._current_autograd_node()
            where = node.name() if node is not None else ""
            function = PARAMETER_GRADIENT if node is not None and _is_parameter_gradient(node, tensor) else ""
        module = self._modules[-1]
        site = Site("", str(func), where, function, module, tuple(tensor.shape))
        return self._number(replace(site, kind=kind_of(site, self.phase, self._vocabulary, self.kinds)))

    def of_scratch(self, op, nbytes: int) -> int:
        return self._number(Site(KERNEL_SCRATCH, str(op), "", "", self._modules[-1], (nbytes,)))

    def note_assumption(self, assumed: dict[str, int], op: OpOverloadPacket) -> None:
        """Count in ``assumed`` that the program needed a value that is not known, at the line that needed it."""
        where, function = _innermost(self._reader)
        key = f"{where} {function}: {_NAMES.get(op.__name__, op.__name__)}()"
        assumed[key] = assumed.get(key, 0) + 1

    def name_modules(self, model: torch.nn.Module, on_entering: Callable[[], None]) -> None:
        """Record the module whose forward runs with each later allocation. ``on_entering`` runs at each forward."""
        self._vocabulary = model.config.get_text_config().vocab_size
        names = {id(module): name for name, module in model.named_modules()}

        def entering(module, inputs):
            self._modules.append(names.get(id(module), self._modules[-1]))
            on_entering()

        def leaving(module, inputs, outputs):
            self._modules.pop()

        register_module_forward_pre_hook(entering)
        register_module_forward_hook(leaving, always_call=True)

    def _number(self, site: Site) -> int:
        number = self._numbers.get(site)
        if number is None:
            number = self._numbers[site] = len(self._sites)
            self._sites.append(site)
        return number

    def _label(self, code: CodeType) -> str | None:
        if code not in self._labels:
            path = code.co_filename
            passes_on = path.startswith(_NOT_THE_CALLER) and not path.startswith(_TORCH_OPTIMIZERS)
            self._labels[code] = None if passes_on else _as_imported(path)
        return self._labels[code]

    def _reader(self, code: CodeType) -> str | None:
        if code not in self._readers:
            path = code.co_filename
            self._readers[code] = None if path.startswith(_NOT_THE_READER) else _as_imported(path)
        return self._readers[code]


def _innermost(label_of: Callable[[CodeType], str | None]) -> tuple[str, str]:
    """Return ``package/file.py:line`` and the function of the innermost frame that has a label."""
    frame = sys._getframe(3)
    while frame is not None:
        label = label_of(frame.f_code)
        if label is not None:
            return (f"{label}:{frame.f_lineno}", frame.f_code.co_name)
        frame = frame.f_back
    return "", ""


def _as_imported(path: str) -> str:
    """Return the path of a file relative to the folder that it was imported from: ``package/file.py``."""
    folders = (os.path.join(folder, "") for folder in sys.path)
    return path.removeprefix(max((folder for folder in folders if path.startswith(folder)), key=len, default=""))


def _is_parameter_gradient(node, tensor: torch.Tensor) -> bool:
    """Whether a result of the backward node is the gradient of a parameter of this size, directly or transposed."""
    for next_node, _ in node.next_functions:
        for leaf, _ in ((next_node, 0), *(next_node.next_functions if next_node is not None else ())):
            variable = getattr(leaf, "variable", None)
            if variable is not None and getattr(variable, "ds_numel", variable.numel()) == tensor.numel():
                return True
    return False
