"""Large numpy arrays without memory, for tensors without values that a program reads: logits kept in an evaluation.

Such an array has one element for all, the value of a healthy run, and the strides 0. What numpy computes from it, also
with other arrays, has again one element for all. Its bytes are recorded as host memory.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from memlab.simulator.rank import device

LARGE_BYTES = 4 << 20
"""Arrays from this size on have no memory."""


class LargeArray(np.ndarray):
    """An array in which all elements are the same one. ``held``: what stands for its memory, also in its views."""

    held: Any = None

    def __array_finalize__(self, array) -> None:
        self.held = getattr(array, "held", None)

    def __array_function__(self, function, types, args, kwargs):
        known: Any = _KNOWN.get(function)
        if known is not None:
            return known(*args, **kwargs)
        return super().__array_function__(function, types, args, kwargs)

    def __array_ufunc__(self, function, method, *inputs, out=None, **options):  # type: ignore[override]
        if out is not None and isinstance(out[0], LargeArray):
            return out[0]  # keeps its element, as in __setitem__
        if method != "__call__" or out is not None:
            return super().__array_ufunc__(function, method, *map(_plain, inputs), out=out, **options)
        shape = np.broadcast_shapes(*(np.shape(each) for each in inputs))
        return filled(shape, function(*map(_element, inputs), **options))

    def __setitem__(self, index, value) -> None:
        """Keep the element: it stands for unknown values."""

    def argmax(self, axis=None, **options):  # type: ignore[override]  # of numpy's overloads
        return _first(self, axis)

    argmin = argmax  # type: ignore[assignment]

    def astype(self, dtype, *args, **options):
        return filled(self.shape, _element(self).astype(dtype))

    def copy(self, *args, **options):
        return filled(self.shape, _element(self))


def filled(shape: Sequence[int], element: Any) -> np.ndarray:
    """Return an array of ``shape`` full of ``element``; a large one takes recorded memory of the host."""
    one = np.array(element).reshape(1)
    nbytes = one.itemsize * int(np.prod(shape, dtype=np.int64))
    if nbytes < LARGE_BYTES:
        return np.full(shape, one[0])
    return _large(np.broadcast_to(one, shape), device.recorder.memory.host_block(nbytes))


def without_memory(array: np.ndarray, held: Any) -> np.ndarray:
    """Return ``array`` itself, or if it is large and all its elements are the same one, as a :class:`LargeArray`."""
    return array if array.nbytes < LARGE_BYTES or any(array.strides) else _large(array, held)


def _large(array: np.ndarray, held: Any) -> LargeArray:
    large: LargeArray = array.view(LargeArray)  # type: ignore[assignment]  # numpy's stubs do not know the class
    large.held = held
    return large


def _element(array: Any) -> Any:
    """Return the first element of an array, or a scalar itself, whose type counts less in numpy's promotion."""
    return _plain(array).flat[0] if isinstance(array, np.ndarray) else array


def _plain(array: Any) -> Any:
    return array.view(np.ndarray) if isinstance(array, LargeArray) else array


def _first(array: np.ndarray, axis: int | None = None, **options) -> Any:
    """Return the index of the first element along ``axis``, which is as large as all others."""
    return np.int64(0) if axis is None else np.zeros(np.delete(array.shape, axis), dtype=np.int64)


def _concatenate(arrays: Sequence[np.ndarray], axis: int | None = 0, **options) -> np.ndarray:
    element = _element(next(each for each in arrays if isinstance(each, LargeArray)))
    if axis is None:
        return filled([sum(map(np.size, arrays))], element)
    shape = list(np.shape(arrays[0]))
    shape[axis] = sum(np.shape(each)[axis] for each in arrays)
    return filled(shape, element)


def _like(array: np.ndarray, value: Any, dtype=None, shape=None, **options) -> np.ndarray:
    return filled(array.shape if shape is None else shape, np.array(value, dtype or array.dtype))


def _keeping(make: Callable[..., Any], copies: bool) -> Callable[..., Any]:
    """Let a function of numpy that makes plain arrays return a large array without memory as such a one.

    numpy asks no subclass there. ``copies``: the function makes an array of its own.
    """

    @functools.wraps(make)
    def made(array: Any, dtype: Any = None, *args: Any, **options: Any) -> Any:
        if not isinstance(array, LargeArray):
            return make(array, dtype, *args, **options)
        if dtype is None or array.dtype == dtype:
            return array.copy() if copies else array
        return array.astype(dtype)

    return made


np.asarray, np.ascontiguousarray = _keeping(np.asarray, copies=False), _keeping(np.ascontiguousarray, copies=False)
np.array = _keeping(np.array, copies=True)

_KNOWN = {
    np.argmax: _first,
    np.argmin: _first,
    np.concatenate: _concatenate,
    np.full_like: lambda array, value, dtype=None, order="K", subok=True, shape=None: _like(array, value, dtype, shape),
    np.zeros_like: lambda array, dtype=None, order="K", subok=True, shape=None: _like(array, 0, dtype, shape),
    np.empty_like: lambda array, dtype=None, order="K", subok=True, shape=None: _like(array, 0, dtype, shape),
    np.copy: lambda array, **options: array.copy(),
}
"""Functions of numpy that would make an array of their own size."""
