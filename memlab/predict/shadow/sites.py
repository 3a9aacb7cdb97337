"""Where in the code an allocation was made, and so what it is for."""

import sys
from types import CodeType

import torch

from memlab.predict.events import Site
from memlab.predict.shadow.kinds import kind_of

SMALL_BYTES = 64 << 10
"""Allocations below this are told apart by phase alone: they are most of the events and almost none of the bytes."""

_NOT_THE_CALLER = ("/torch/", "/memlab/predict/", "/deepspeed/runtime/zero/linear.py", "/deepspeed/utils/", "<", "/contextlib.py")
"""Files that only pass a call on: the line that a reader wants is further out."""


class Sites:
    """Numbers the distinct places; ``sites`` is the list that it fills."""

    def __init__(self, sites: list[Site]):
        self.phase = ""
        self.modules: list[str] = [""]
        self._sites = sites
        self._numbers: dict[Site, int] = {}
        self._labels: dict[CodeType, str | None] = {}

    def name_modules(self, model: torch.nn.Module) -> None:
        pass

    def of(self, tensor: torch.Tensor, nbytes: int, func) -> int:
        if nbytes < SMALL_BYTES:
            return self._number(Site(kind_of(self.phase, "", "", False), "", "", "", ()))
        where, function = self._caller()
        node = torch._C._current_autograd_node() if not where else None
        gradient = node is not None and _is_parameter_gradient(node, tensor)
        if node is not None:
            where = node.name()
        kind = kind_of(self.phase, where, function, gradient)
        return self._number(Site(kind, str(func), where, self.modules[-1], tuple(tensor.shape)))

    def of_workspace(self, op: str, nbytes: int) -> int:
        return self._number(Site("kernel workspace", op, "", self.modules[-1], (nbytes,)))

    def _number(self, site: Site) -> int:
        number = self._numbers.get(site)
        if number is None:
            number = self._numbers[site] = len(self._sites)
            self._sites.append(site)
        return number

    def _caller(self) -> tuple[str, str]:
        """``package/file.py:line`` and the function's name of the innermost frame that decides something."""
        frame = sys._getframe(3)
        while frame is not None:
            label = self._label(frame.f_code)
            if label is not None:
                return (f"{label}:{frame.f_lineno}", frame.f_code.co_name)
            frame = frame.f_back
        return "", ""

    def _label(self, code: CodeType) -> str | None:
        if code not in self._labels:
            path = code.co_filename
            passes_on = any(part in path for part in _NOT_THE_CALLER)
            self._labels[code] = None if passes_on else path.split("site-packages/")[-1]
        return self._labels[code]


def _is_parameter_gradient(node, tensor: torch.Tensor) -> bool:
    """Whether one of the node's results goes to a parameter of this size (directly, or through a transposition)."""
    for next_node, _ in node.next_functions:
        for leaf, _ in ((next_node, 0), *(next_node.next_functions if next_node is not None else ())):
            variable = getattr(leaf, "variable", None)
            if variable is not None and getattr(variable, "ds_numel", variable.numel()) == tensor.numel():
                return True
    return False
