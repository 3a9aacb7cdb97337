"""What keeps more tensors with each step: a container that grows, or a tensor whose graph grows.

Two looks at the objects of the process show what grows between them. What refers to it has the name of the variable,
and the source of the script the line that keeps tensors in it.
"""

import contextlib
import gc
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from pathlib import Path
from types import FunctionType, ModuleType, NoneType
from typing import Any, NamedTuple

import torch

from .source_lines import Uses, uses_of
from .variables import Variable, user_variables, variable_of
from .where import user_file

GPU = "cuda"
"""Type of the device whose tensors are searched for."""

MOST_S = 2.0
"""Seconds after which no more candidates are looked at: all ranks wait for the one that looks."""

MOST_PLACES = 10_000
"""Longest list of which the empty places are counted."""

MOST_INSIDE = 16
"""Most members of an element of a container that are searched for tensors."""

MOST_NODES = 100_000
"""Nodes of a graph after which counting ends."""

LEAST_SHARE = 0.5
"""Least share of the growth that the tensors in a container take, if they are what grows, and not their graphs."""

DEPTH = 3
"""Levels of objects between a container and its tensors."""

PLAIN = (NoneType, bool, int, float, str, bytes, type, FunctionType, ModuleType)
"""Types of objects that are not searched for tensors."""


class _Grown(NamedTuple):
    """A container, or the variable of a tensor, that grew since the first look. ``each``: elements a step, or nodes of
    its graph; ``filled``: elements now; ``nbytes``: of the tensors of one step, without their graphs; ``is_scalar``:
    whether each has one element; ``is_whole``: the newest element was searched to its end."""

    holder: Any
    each: float
    filled: int
    bound: int | None
    nbytes: float
    keeps_graph: bool
    is_scalar: bool
    is_whole: bool = True


class Keepers:
    """The search for what keeps tensors of each step. ``found``: ``kept_by`` of the rank's file, at the last look."""

    def __init__(self):
        self.found: dict[str, Any] | None = None
        self._first_step: int | None = None
        self._places: dict[int, tuple[int, int]] = {}  # id of a container -> taken and all places at the first look
        self._nodes: dict[Variable, int] = {}  # of graphs at the first look
        self._tensors: dict[int, weakref.ref] = {}  # id of a tensor -> the tensor, at the last look

    def look(self, step: int, bytes_per_step: int) -> None:
        """Look at the end of a step. Later looks are compared with the first one.

        The size of a graph is not known. So nothing is named for its graph where another container may hold more: one
        that has no name, or whose tensors may lie deeper than the search goes. A wrong name is worse than none.
        """
        if self._first_step is None:
            self._first_step = step
            self._places = {id(each): (_taken(each), len(each)) for each in _containers()}
            self._nodes = {variable: nodes for variable, nodes, _ in _graphs()}
            self._tensors = _all_tensors()
            return
        if not (steps := step - self._first_step):
            return
        grown = sorted(self._grown_containers(steps), key=lambda each: abs(each.nbytes - bytes_per_step))
        self._tensors = _all_tensors()
        least = LEAST_SHARE * bytes_per_step
        large = [each for each in grown if each.nbytes >= least]
        with_graph = [each for each in grown if each.keeps_graph]
        old = [each for each in grown if id(each.holder) in self._places]
        unnamed = [each for each in old if each.each >= 1 and not each.is_whole]
        self.found, until = None, time.monotonic() + MOST_S
        for each in (*large, *self._grown_graphs(steps), *with_graph):
            if each.nbytes < least and any(other is not each for other in unnamed):
                continue
            variable = each.holder if isinstance(each.holder, Variable) else variable_of(each.holder, until)
            if variable is not None:
                self.found = _described(each, variable, step)
                return
            unnamed += [other for other in old if other is each]

    def _grown_containers(self, steps: int) -> Iterator[_Grown]:
        for container in _containers():
            before, places = self._places.get(id(container), (0, 0))
            taken = _taken(container)
            if taken <= before:
                continue
            values = container.values() if isinstance(container, Mapping) else container
            elements = [each for each in values if each is not None]
            first, last = (list(_tensors(end, DEPTH)) for end in (elements[:1], elements[-1:]))
            found = last or first  # those of the newest element: a deque may be filled from the left
            if found and self._seen_some((*first, *last)):
                tensors = [tensor for tensor in found if tensor is not None]
                storages = {storage._cdata: storage.nbytes() for storage in map(torch.Tensor.untyped_storage, tensors)}
                each = (taken - before) / steps
                bound = len(container) if len(container) == places else getattr(container, "maxlen", None)
                keeps_graph = any(tensor.requires_grad for tensor in tensors)
                is_scalar = all(tensor.numel() == 1 for tensor in tensors)
                nbytes, whole = each * sum(storages.values()), len(tensors) == len(found)
                yield _Grown(container, each, taken, bound, nbytes, keeps_graph, is_scalar, whole)

    def _seen_some(self, tensors: Iterable[torch.Tensor | None]) -> bool:
        """Whether the last look has seen one of the tensors of a container. Else it is new, or was filled anew."""
        return any(tensor is None or self._tensors.get(id(tensor), lambda: None)() is tensor for tensor in tensors)

    def _grown_graphs(self, steps: int) -> Iterator[_Grown]:
        for variable, nodes, is_scalar in _graphs():
            if variable in self._nodes and nodes - self._nodes[variable] >= steps:
                yield _Grown(variable, (nodes - self._nodes[variable]) / steps, nodes, None, 0, True, is_scalar)


def _described(grown: _Grown, variable: Variable, step: int) -> dict[str, Any]:
    uses = Uses(None, False)
    if variable.file is not None:
        with contextlib.suppress(OSError, SyntaxError, UnicodeDecodeError):
            uses = uses_of(Path(variable.file).read_text("utf-8"), variable.root, variable.function)
    file = variable.file and (user_file(variable.file) or variable.file)
    full_at = None if grown.bound is None else step + ceil((grown.bound - grown.filled) / grown.each)
    return {
        "name": variable.name,
        "where": None if uses.keeps is None else f"{file}:{uses.keeps}",
        "bound": grown.bound,
        "full_at_step": full_at,
        "keeps_graph": grown.keeps_graph,
        "is_scalar": grown.is_scalar,
        "is_emptied": uses.is_emptied or variable.is_made_again,
    }


def _containers() -> list[Any]:
    return [each for each in gc.get_objects() if issubclass(type(each), list | deque | dict | set)]


def _taken(container: Any) -> int:
    """Return how many places of a container are taken. A list may be made with empty ones; those of numbers and texts
    are not counted, as a script's data can be millions of lists."""
    has_places = isinstance(container, list) and 0 < len(container) <= MOST_PLACES
    if has_places and not isinstance(container[0], int | float | str):
        return sum(each is not None for each in container)
    return len(container)


def _all_tensors() -> dict[int, weakref.ref]:
    return {id(each): weakref.ref(each) for each in gc.get_objects() if issubclass(type(each), torch.Tensor)}


def _tensors(elements: Iterable[Any], depth: int) -> Iterator[torch.Tensor | None]:
    """Yield the tensors on a GPU among objects, and in them; ``None`` for objects that are not searched."""
    for element in elements:
        if issubclass(type(element), torch.Tensor):
            if element.device.type == GPU:
                yield element
        elif members := [each for each in _members(element) if type(each) not in PLAIN]:
            found = list(_tensors(members[-MOST_INSIDE:], depth - 1)) if depth else [None]
            yield from found
            if found and len(members) > MOST_INSIDE:
                yield None


def _members(element: Any) -> list[Any]:
    if issubclass(type(element), Mapping):
        return list(element.values())
    if issubclass(type(element), list | tuple | set | deque):
        return list(element)
    inner = getattr(element, "__dict__", None)
    return list(inner.values()) if isinstance(inner, dict) else []


def _graphs() -> Iterator[tuple[Variable, int, bool]]:
    """Yield the variables of the script whose tensors have a graph, with its nodes and whether it is a scalar."""
    for variable, value in user_variables():
        if issubclass(type(value), torch.Tensor) and value.grad_fn is not None:
            yield variable, _nodes(value.grad_fn), value.numel() == 1


def _nodes(function: Any) -> int:
    seen, left = {function}, [function]
    while left and len(seen) < MOST_NODES:
        new = {each for each, _ in left.pop().next_functions if each is not None} - seen
        seen |= new
        left.extend(new)
    return len(seen)
