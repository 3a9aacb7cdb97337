"""Allocation sites: the place in the code that made an allocation, and the purpose of the memory."""

import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import FrameType

import torch

from memlab.meters.model_tree import class_of, unwrapped
from memlab.meters.running_modules import RunningModules, module_of_node
from memlab.meters.where import is_generated, user_file
from memlab.simulator.trace.memory_kinds import EXPLAINS, KERNEL_SCRATCH, PARAMETER_GRADIENT, PASSES_ON, SMALL
from memlab.simulator.trace.trace_format import BUT_SHAPE, Site

SMALL_BYTES = 64 << 10
"""Allocations below this share one site: they are most of the events and almost none of the bytes."""

_SMALL = (SMALL, "", "", "", "", (), "")

_name = cache(str)  # of an operator


def path_of(code: str) -> str:
    """The path of a file or folder of a package: ``package/`` or ``package/part/file.py``; of a package that is not
    installed, a path that no file has."""
    package, _, rest = code.partition("/")
    spec = find_spec(package)
    return "\0" if spec is None or spec.origin is None else os.path.join(os.path.dirname(spec.origin), rest)


_NOT_THE_CALLER = (*map(path_of, PASSES_ON), "<")
"""Path prefixes of code that only passes calls on. They are whole paths, because a parent folder may have any name."""

_EXPLAINS = tuple(map(path_of, EXPLAINS))

_TORCH = path_of("torch/")
_SIMULATION = re.compile("memlab/(simulator|training/simulated)/")  # code that no real rank runs
_PYTHON = os.path.join(sysconfig.get_path("stdlib"), "")
_INSTALLED = tuple(os.path.join(_PYTHON, folder, "") for folder in ("site-packages", "dist-packages"))


class AllocationSites:
    """Numbers the distinct sites of a trace: a number is an index in ``sites``."""

    def __init__(self, sites: list[Site]):
        self._user_line: Callable[[], str] = lambda: ""
        self.vocabularies: set[int] = set()  # of the models that have run
        self.of_small: list[Site] | None = None  # of a traced part's small allocations; None outside of one
        self._modules: RunningModules | None = None
        self._call = threading.local()  # ``place``: of the running call of an operator, once it was found
        self._in_graph: tuple[str, Sequence[tuple[str, int, str]]] | None = None
        self._models: set[str] = set()  # names of their classes
        self._sites = sites
        self._numbers: dict[tuple, int] = {}  # by the fields of a site
        self._small: Callable[[tuple], Site] = cache(lambda fields: Site(*fields))
        self._without_shape: dict[tuple, Site] = {}
        self._labels: dict[str, str | None] = {}  # by the path of a file

    @property
    def module(self) -> str:
        """Name of the module whose forward runs; empty outside all modules."""
        return "" if self._modules is None else self._modules.in_forward

    @property
    def _requesting(self) -> str:
        """Name of the module whose forward runs, or has made the node of autograd that runs."""
        return self.module or module_of_node(torch._C._current_autograd_node())

    def call_begins(self) -> None:
        """Begin another call of an operator: all its results have one place in the code, which is looked for once."""
        self._call.place = None

    def of(self, operator: object, nbytes: int, tensor: torch.Tensor | None = None) -> int:
        """Return the number of the site where an operator made ``tensor``. ``None``: a temporary of the operator."""
        if nbytes >= SMALL_BYTES:
            return self._number(self._of_code(_name(operator), tensor))
        if self.of_small is not None:
            self.of_small.append(self._small(self._of_code(_name(operator), tensor)))
        return self._number(_SMALL)

    def without_shape(self, site: Site) -> Site:
        """Return a site without its shape: the same object for all sites that differ in their shapes alone."""
        fields = BUT_SHAPE(site)
        if fields not in self._without_shape:
            self._without_shape[fields] = site.changed(shape=())
        return self._without_shape[fields]

    def like(self, site: Site, shape: tuple[int, ...], nbytes: int) -> int:
        """Return the number of the site of an allocation that differs from another one in its size alone."""
        if nbytes < SMALL_BYTES and site.kind != KERNEL_SCRATCH:
            return self._number(_SMALL)
        return self._number((site.kind, site.op, site.where, site.function, site.module, shape, site.user_line))

    def of_workspace(self, owner: object, nbytes: int) -> int:
        """Return the number of the site of memory that a kernel requests without a tensor."""
        line = "" if nbytes < SMALL_BYTES else self._user_line()
        return self._number((KERNEL_SCRATCH, _name(owner), "", "", self._requesting, (nbytes,), line))

    def _of_code(self, operator: str, tensor: torch.Tensor | None = None) -> tuple:
        """Return the fields of a site without an owner."""
        if self._call.place is None:
            self._call.place = self._find_place()
        where, function, is_node, module, user_line = self._call.place
        if is_node and tensor is not None and _is_parameter_gradient(torch._C._current_autograd_node(), tensor):
            function = PARAMETER_GRADIENT
        return "", operator, where, function, module, () if tensor is None else tuple(tensor.shape), user_line

    def _find_place(self) -> tuple[str, str, bool, str, str]:
        """Return the place of the running call: line and function, or the name of the node of autograd that runs;
        whether it is such a node; the module that requests memory; and the user's line."""
        if self._in_graph:
            return self._place_in_graph(*self._in_graph)
        where, function = _innermost(self._label)
        if where:
            return where, function, False, self._requesting, self._user_line()
        node = torch._C._current_autograd_node()
        where, function = _innermost(_label_of_any) if node is None else (node.name(), "")
        return where, function, node is not None, self._requesting, self._user_line()

    @contextmanager
    def in_graph(self, module: str, calls: Sequence[tuple[str, int, str]]) -> Iterator[None]:
        """Requests inside are made by code that was generated for a graph. ``module``: the part of the compiled module
        whose operation needs the memory. ``calls``: file, line and function of the calls that led to the operation, the
        innermost first."""
        self._in_graph = module, calls
        try:
            yield
        finally:
            self._in_graph = None

    def _place_in_graph(self, part: str, calls: Sequence[tuple[str, int, str]]) -> tuple[str, str, bool, str, str]:
        named = ((f"{label}:{line}", function) for path, line, function in calls if (label := self._label(path)))
        users = (f"{name}:{line}" for path, line, _ in calls if (name := user_file(path)))
        where, function = next(named, ("", ""))
        compiled = self._requesting
        module = ".".join(filter(None, ["" if part and compiled in self._models else compiled, part]))
        return where, function, False, module, next(users, None) or self._user_line()

    def follow_modules(self, on_entering: Callable[[], None]) -> None:
        """Record the running module with each later allocation. ``on_entering`` runs at each forward."""
        self._modules = RunningModules(found=self._model_found, entered=on_entering)

    def follow_script(self, user_line: Callable[[FrameType], str | None]) -> None:
        """Record the user's line with each later allocation. ``user_line``: of a frame of the main thread."""
        main = threading.get_ident()
        self._user_line = lambda: user_line(sys._current_frames()[main]) or ""

    def _model_found(self, model: torch.nn.Module) -> None:
        self._models.add(class_of(unwrapped(model)[0]).__name__)
        if isinstance(vocabulary := _vocabulary(model), int):
            self.vocabularies.add(vocabulary)

    def _number(self, fields: tuple) -> int:
        number = self._numbers.get(fields)
        if number is None:
            number = self._numbers[fields] = len(self._sites)
            self._sites.append(Site(*fields))
        return number

    def _label(self, path: str) -> str | None:
        if path not in self._labels:
            is_pythons = path.startswith(_PYTHON) and not path.startswith(_INSTALLED)
            passes_on = is_pythons or (path.startswith(_NOT_THE_CALLER) and not path.startswith(_EXPLAINS))
            self._labels[path] = None if passes_on or is_generated(path) else _file_name(path)
        return self._labels[path]


def _label_of_any(path: str) -> str | None:
    """Name a file of code that is neither torch's nor Python's: where nothing explains a request, it passed it on."""
    is_pythons = path.startswith(_PYTHON) and not path.startswith(_INSTALLED)
    return None if is_pythons or path.startswith((_TORCH, "<")) or _SIMULATION.search(path) else _file_name(path)


def _innermost(label_of: Callable[[str], str | None]) -> tuple[str, str]:
    """Return ``package/file.py:line`` and the function of the innermost frame that has a label."""
    frame: FrameType | None = sys._getframe(4)
    while frame is not None:
        label = label_of(frame.f_code.co_filename)
        if label is not None:
            return (f"{label}:{frame.f_lineno}", frame.f_code.co_name)
        frame = frame.f_back
    return "", ""


def _vocabulary(module: torch.nn.Module) -> int | None:
    """Return the vocabulary of a model of transformers, also inside a wrapper; ``None`` for any other module."""
    configs = (getattr(part, "config", None) for part in module.modules())
    config = next((config for config in configs if hasattr(config, "get_text_config")), None)
    return None if config is None else getattr(config.get_text_config(), "vocab_size", None)


def _file_name(path: str) -> str:
    """Return the path of a user's file relative to the folder of the start, and of any other as it was imported."""
    users = user_file(path)
    return path_as_imported(path) if users is None or os.path.isabs(users) else users


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
