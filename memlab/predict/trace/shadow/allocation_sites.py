"""Allocation sites: the place in the code that made an allocation, and the purpose of the memory."""

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from types import CodeType, FrameType

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from memlab.attach import model_tree
from memlab.predict.trace.memory_kinds import (
    EXPLAINS,
    KERNEL_SCRATCH,
    PARAMETER_GRADIENT,
    PASSES_ON,
    SMALL,
    kind_of,
)
from memlab.predict.trace.trace_format import Site

SMALL_BYTES = 64 << 10
"""Allocations below this share one site: they are most of the events and almost none of the bytes."""


def path_of(code: str) -> str:
    """The path of a file or folder of a package: ``package/`` or ``package/part/file.py``; of a package that is not
    installed, a path that no file has."""
    package, _, rest = code.partition("/")
    spec = find_spec(package)
    return "\0" if spec is None else os.path.join(os.path.dirname(spec.origin), rest)


_NOT_THE_CALLER = (*map(path_of, PASSES_ON), contextlib.__file__, functools.__file__, "<")
"""Path prefixes of code that only passes calls on. They are whole paths, because a parent folder may have any name."""

_EXPLAINS = tuple(map(path_of, EXPLAINS))


class AllocationSites:
    """Numbers the distinct sites of a trace: a number is an index in ``sites``."""

    def __init__(self, sites: list[Site]):
        self.phase = ""
        self._running_phase: Callable[[], str] = lambda: self.phase
        self._user_line: Callable[[], str] = lambda: ""
        self.kinds: tuple[tuple[str, str, str], ...] = ()  # of libraries' allocations (stand_ins.StandIn)
        self._vocabulary = 0
        self._modules = [""]  # stack of the names of modules whose forward runs
        self._sites = sites
        self._numbers: dict[Site, int] = {}
        self._labels: dict[CodeType, str | None] = {}

    @property
    def module(self) -> str:
        """Name of the module whose forward runs; empty outside all modules."""
        return self._modules[-1]

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
        site = Site("", str(func), where, function, module, tuple(tensor.shape), self._user_line())
        return self._number(replace(site, kind=kind_of(site, self._running_phase(), self._vocabulary, self.kinds)))

    def of_scratch(self, op, nbytes: int) -> int:
        line = "" if nbytes < SMALL_BYTES else self._user_line()
        return self._number(Site(KERNEL_SCRATCH, str(op), "", "", self._modules[-1], (nbytes,), line))

    def name_modules(self, model: torch.nn.Module, on_entering: Callable[[], None]) -> None:
        """Record the module whose forward runs with each later allocation. ``on_entering`` runs at each forward."""
        self._vocabulary = model.config.get_text_config().vocab_size
        names = {id(module): name for name, module in model.named_modules()}
        self._follow_modules(lambda module: names.get(id(module)), on_entering)

    def follow_script(
        self,
        running_phase: Callable[[], str],
        user_line: Callable[[FrameType], str | None],
        on_entering: Callable[[], None],
    ) -> None:
        """Record phase, user's line and module of each later allocation, for a script whose models are not known.

        A module whose forward runs inside no other one names its parts. ``user_line``: of a frame of the main thread.
        """
        names: dict[int, str] = {}
        main = threading.get_ident()

        def name_of(module: torch.nn.Module) -> str | None:
            if len(self._modules) == 1 and id(module) not in names:
                names[id(module)] = ""
                names.update((id(part), name) for name, part in model_tree.unwrapped(module)[0].named_modules())
                if isinstance(vocabulary := _vocabulary(module), int):
                    self._vocabulary = vocabulary
            return names.get(id(module))

        self._running_phase = running_phase
        self._user_line = lambda: user_line(sys._current_frames()[main]) or ""
        self._follow_modules(name_of, on_entering)

    def _follow_modules(
        self, name_of: Callable[[torch.nn.Module], str | None], on_entering: Callable[[], None]
    ) -> None:
        def entering(module, inputs):
            name = name_of(module)
            self._modules.append(self._modules[-1] if name is None else name)
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
            passes_on = path.startswith(_NOT_THE_CALLER) and not path.startswith(_EXPLAINS)
            self._labels[code] = None if passes_on else path_as_imported(path)
        return self._labels[code]


def _innermost(label_of: Callable[[CodeType], str | None]) -> tuple[str, str]:
    """Return ``package/file.py:line`` and the function of the innermost frame that has a label."""
    frame = sys._getframe(3)
    while frame is not None:
        label = label_of(frame.f_code)
        if label is not None:
            return (f"{label}:{frame.f_lineno}", frame.f_code.co_name)
        frame = frame.f_back
    return "", ""


def _vocabulary(module: torch.nn.Module) -> int | None:
    """Return the vocabulary of a model of transformers, also inside a wrapper; ``None`` for any other module."""
    configs = (getattr(part, "config", None) for part in module.modules())
    config = next((config for config in configs if hasattr(config, "get_text_config")), None)
    return None if config is None else getattr(config.get_text_config(), "vocab_size", None)


def path_as_imported(path: str) -> str:
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
