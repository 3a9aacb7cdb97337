"""Sites of a measured run's requests, from the stacks that torch's memory history recorded."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from memlab.analyse.explain.snapshot import Frame, Stack
from memlab.predict.trace.memory_kinds import EXPLAINS, KERNEL_SCRATCH, PASSES_ON, kind_of
from memlab.predict.trace.trace_format import Site

OTHER = "of unknown origin"
"""Kind of a block that no line of code, no backward node and no owner explains."""

_OWN = "/memlab_attach/"
"""Part of the path of memlab's meters in a command (attach/install.py)."""

_CUBLAS_WORKSPACE = frozenset({"at::cuda::getCurrentCUDABlasHandle()", "at::cuda::getCUDABlasLtWorkspace()"})
"""Functions of torch that request the workspace of cuBLAS, which stays: a prediction names it alike."""

_INNER = ("empty", "resize_", "new_empty", "_cudnn_attention", "_flash_attention", "_efficient_attention")
"""Operators that others call for their memory, or as the kernel behind ``scaled_dot_product_attention``."""

_WHOLE = frozenset({"_safe_softmax", "_softmax_backward_data", "embedding", "embedding_dense_backward"})
"""Operators that call others for their result."""

_OPERATOR = re.compile(r"at::_ops::(\w+)::")
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply")
_PYTHON = re.compile(r".*/lib/python3\.\d+/(?!(?:site|dist)-packages/)")
_SUM_OF_GRADIENTS = "torch::autograd::InputBuffer::"  # between two nodes: of a tensor that is used twice
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/|.*/lib/python3\.\d+/")


class StackSites:
    """``folder``: the command's working folder; empty if it is not known. ``import_paths``: folders that the command
    imported from."""

    def __init__(self, folder: str, import_paths: Sequence[str]):
        self._folder, self._below = folder, os.path.join(folder, "")
        self._import_paths = import_paths

    def site(self, stack: Stack, module: str, phase: str) -> Site:
        """Return the site of a request, with its kind. ``module``, ``phase``: those that ran."""
        user = next((f"{self._short(frame.file)}:{frame.line}" for frame in stack if self._is_the_users(frame)), "")
        if owner := _workspace_of(stack):
            return Site(KERNEL_SCRATCH, owner, "", "", module, (), user)
        callers = [frame for frame in stack if _is_python(frame) and not _PYTHON.match(frame.file)]
        caller = next((frame for frame in callers if _explains(self._as_imported(frame))), None)
        node = _node(stack)
        if caller is None and not node:  # then what passes the call on is the best that is known
            caller = next((frame for frame in callers if not self._as_imported(frame).file.startswith("torch/")), None)
        where = node if caller is None else f"{self._named(caller)}:{caller.line}"
        function = "" if caller is None else caller.function
        site = Site("", _operator(stack), where, function, module, (), user)
        if not where and not any(function.startswith(_SUM_OF_GRADIENTS) for function in _compiled(stack)):
            return replace(site, kind=OTHER)
        return replace(site, kind=kind_of(site, phase))

    def _named(self, frame: Frame) -> str:
        """Return the user's file relative to the command's folder, and any other as it was imported."""
        return self._short(frame.file) if self._is_the_users(frame) else self._as_imported(frame).file

    def _as_imported(self, frame: Frame) -> Frame:
        """Return the frame with the path of an imported file relative to the folder that it was imported from."""
        installed = _INSTALLED.sub("", frame.file)
        roots = (root for path in self._import_paths if frame.file.startswith(root := os.path.join(path, "")))
        relative = frame.file.removeprefix(max(roots, key=len, default=""))
        return frame._replace(file=min(installed, relative, key=len))

    def _short(self, path: str) -> str:
        return os.path.relpath(path, self._folder) if self._is_below(path) else path

    def _is_below(self, path: str) -> bool:
        return bool(self._folder) and path.startswith(self._below)

    def _is_the_users(self, frame: Frame) -> bool:
        own = _OWN in frame.file or self._short(frame.file).startswith("memlab/")
        return _is_python(frame) and self._is_below(frame.file) and not _INSTALLED.match(frame.file) and not own


def _is_python(frame: Frame) -> bool:
    return frame.file.endswith(".py")


def _explains(frame: Frame) -> bool:
    if frame.file.startswith("<"):
        return False
    return frame.file.startswith(EXPLAINS) or not (frame.file.startswith(PASSES_ON) or _OWN in frame.file)


def _compiled(stack: Stack) -> Iterator[str]:
    """Yield the C++ functions that the innermost Python frame called, the innermost first."""
    for frame in stack:
        if _is_python(frame):
            return
        yield frame.function


def _operator(stack: Stack) -> str:
    """Return the operator that needed the memory: the innermost that does more than to allocate, or the one that a
    program calls where that is a part of it."""
    names = [match[1] for function in _compiled(stack) if (match := _OPERATOR.match(function))]
    whole = (name for name in names if name in _WHOLE)
    does_more = (name for name in names if not name.startswith(_INNER))
    name = next(chain(whole, does_more, names[-1:]), "")
    return f"aten.{name}" if name else ""


def _workspace_of(stack: Stack) -> str:
    """Return who requested memory without a tensor: cuBLAS, or the operator of a kernel of torch; else nothing."""
    functions = list(_compiled(stack))
    if not _CUBLAS_WORKSPACE.isdisjoint(functions):
        return "cuBLAS"
    makes_a_tensor = any(word in function for function in functions for word in ("empty", "resize"))
    is_kernel = any(function.startswith("at::native::") for function in functions)
    return _operator(stack) if is_kernel and not makes_a_tensor else ""


def _node(stack: Stack) -> str:
    """Return the backward node that ran, without the C++ namespace."""
    return next((match[1] for function in _compiled(stack) if (match := _NODE.match(function))), "")
