"""Results of the most frequent operators without FakeTensorMode: the same results, in a tenth of the time.

FakeTensorMode looks up every call in a cache, and computing the cache key costs more than the result. Here a view calls
the meta kernel directly, a collective returns the tensors that it was given, and an operator that creates tensors is
computed only once for each set of shapes: the operators of ``OF_META`` by their meta kernels, all others by
FakeTensorMode.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_checks
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from memlab.meters.nested_tensors import NESTED, tensors_in
from memlab.simulator.rank.device import is_on
from memlab.simulator.rank.libraries import META_IS_CUDA
from memlab.simulator.rank.unpredictable import OWN_STAND_IN, UnpredictableError

_aten = torch.ops.aten
_EMPTY = _aten.empty.memory_format
_META = torch.device("meta")
_empty_strided = torch._C._VariableFunctions.empty_strided  # takes a sixth of the time of the operator's own call


def _operators(names: str) -> frozenset[OpOverload]:
    """Return operators of torch by a text of their names: ``view.dtype``, or ``view`` for ``view.default``."""
    found = (name.split(".") for name in names.split())
    return frozenset(getattr(getattr(_aten, packet), *overload or ["default"]) for packet, *overload in found)


LISTS_OF_VIEWS = _operators("split.Tensor split_with_sizes unbind.int")

VIEWS = _operators(
    "_unsafe_view view view.dtype alias detach as_strided expand select.int slice.Tensor t permute transpose.int "
    "squeeze.dim unsqueeze"
)

IN_PLACE = _operators("add_.Tensor mul_.Tensor div_.Tensor copy_ zero_ normal_ lerp_.Scalar addcmul_ addcdiv_")
"""Operators that return their first argument, with its shape and dtype unchanged."""

OF_META = _operators(
    "add.Tensor sub.Tensor mul.Tensor mul.Scalar div.Tensor neg pow.Tensor_Scalar rsqrt tanh sigmoid gelu silu "
    "eq.Scalar eq.Tensor ne.Scalar where.self masked_fill.Scalar mm bmm addmm cat clone _to_copy sum sum.dim_IntList "
    "mean.dim embedding native_layer_norm nll_loss_forward gelu_backward silu_backward tanh_backward sigmoid_backward "
    "threshold_backward native_layer_norm_backward nll_loss_backward embedding_dense_backward slice_backward"
)
"""Operators whose meta kernels give the results of FakeTensorMode, in a quarter of its time (median, with torch 2.11 on
one core)."""

_FAKE = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""Dispatch keys of implementations that compute results without values, or of other operators."""


@dataclass(frozen=True)
class _Fresh:
    """Description of a new tensor that shares its storage with no other tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


_UNSEEN: Any = object()
"""Stands for a description that is missing: the operator has not been called with these shapes."""

_NO_FAKE = "no fake impl registered"
"""Part of torch's message for operators that were made in Python (``torch.library.custom_op``)."""


class FakeResults:
    """Computes results of operators within one fake mode."""

    def __init__(self, mode: FakeTensorMode):
        self._mode = mode
        self._attributes: dict[torch.device, dict[str, Any]] = {}  # device -> attributes of a fake tensor on it
        self._known: dict[tuple, list[_Fresh | int | None] | _Fresh | None] = {}

    def of(self, func, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return the result of ``func``."""
        if func is _EMPTY:
            return self._empty(args, kwargs)
        base: Any = args[0] if args else None
        if type(base) is FakeTensor:
            if func in IN_PLACE:
                return base
            if func in VIEWS:
                return self._fake(self._of_meta(func, args, kwargs), base.fake_device)
            if func in LISTS_OF_VIEWS:
                return [self._fake(view, base.fake_device) for view in self._of_meta(func, args, kwargs)]
        return self._remembered(
            func, self._all_fake(args), {name: self._all_fake(each) for name, each in kwargs.items()}
        )

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> FakeTensor:
        return self._empty((list(shape),), {"dtype": dtype, "device": device})

    def strided(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> FakeTensor:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            tensor = _empty_strided(shape, strides, dtype=dtype, device=_META)
        return self._fake(tensor, device)

    def _of_meta(self, func, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call an operator's kernel for meta tensors with fake tensors.

        Source: ``in_kernel_invocation_manager`` in ``torch/_subclasses/fake_tensor.py``, a generator that takes longer
        than the kernel.
        """
        with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
            self._mode.in_kernel_invocation = True
            torch._C._set_meta_in_tls_dispatch_include(True)
            try:
                return func(*args, **kwargs)
            finally:
                self._mode.in_kernel_invocation = False

    def _all_fake(self, value: Any) -> Any:
        """Replace real host tensors by fake ones."""
        if isinstance(value, FakeTensor):
            return value
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            return self.strided(value.shape, value.stride(), value.dtype, value.device)
        return type(value)([self._all_fake(item) for item in value]) if isinstance(value, NESTED) else value

    def _remembered(self, func, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return FakeTensorMode's result, from the cache if ``func`` has been called with these shapes before."""
        key = _key((func, torch.get_default_dtype(), *args, *kwargs.items())) if _makes_new_tensors(func) else None
        known = None if key is None else self._known.get(key, _UNSEEN)
        if known is None or known is _UNSEEN:
            out = self._computed(func, args, kwargs)
            if key is not None and known is _UNSEEN:
                self._known[key] = _description(out)
            return out
        return self._new(known) if isinstance(known, _Fresh) else tuple(map(self._new, known))

    def _computed(self, func, args: tuple, kwargs: dict[str, Any]) -> Any:
        # Without a fake implementation the mode would run the operator for real, on zeros: it may on the host alone.
        tensors = tensors_in((args, kwargs))
        on_gpu = any(map(is_on, tensors))
        self._mode.allow_fallback_kernels = not on_gpu
        try:
            if on_gpu and not has_fake(func):
                if not func._schema.returns:  # it only writes into its arguments, as fused optimizers do
                    return None
                raise UnsupportedOperatorException(func)
            if on_gpu and func in OF_META and "device" not in kwargs and all(map(self._is_own, tensors)):
                devices = {each.fake_device for each in tensors}
                if len(devices) == 1:
                    return self._new_of_meta(func, args, kwargs, *devices)
            with self._mode:
                return _those_asked_for(func, args, func(*args, **kwargs))
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise UnpredictableError(
                f"the result of the operator {func} depends on values, which floats do not have in a prediction. "
                f"Predict without it, or {OWN_STAND_IN}"
            ) from error
        except RuntimeError as error:
            if not isinstance(error, UnsupportedOperatorException) and _NO_FAKE not in str(error):
                raise
            raise UnpredictableError(
                f"the operator {func} has no fake implementation, so the shapes of its results are unknown. Register "
                f"one (torch.library.register_fake), or {OWN_STAND_IN}"
            ) from error

    def _is_own(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a plain fake tensor of this mode. A copy by ``copy.deepcopy`` can have a copied mode."""
        return type(tensor) is FakeTensor and tensor.fake_mode is self._mode

    def _new_of_meta(self, func, args: tuple, kwargs: dict[str, Any], device: torch.device) -> Any:
        """Return fake tensors on ``device`` like the meta tensors that the operator's meta kernel makes."""
        out = _those_asked_for(func, args, self._of_meta(func, args, kwargs))
        if isinstance(out, torch.Tensor):
            return self._fake(out, device)
        return tuple(each if each is None else self._fake(each, device) for each in out)

    def _new(self, fresh: _Fresh | int | None) -> FakeTensor | int | None:
        if not isinstance(fresh, _Fresh):
            return fresh
        return self.strided(fresh.shape, fresh.strides, fresh.dtype, fresh.device)

    def _empty(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        device = torch.device(kwargs.get("device") or "cpu")
        if device.type == "meta":
            return _EMPTY(*args, **kwargs)
        tensor = self._of_meta(_EMPTY, args, {**kwargs, "device": "meta", "pin_memory": None})
        return self._fake(tensor, device if device.type == "cpu" else torch.device(device.type, device.index or 0))

    def _fake(self, tensor: torch.Tensor, device: torch.device) -> FakeTensor:
        """Make ``FakeTensor(mode, tensor, device)`` without its checks, which cost more than the tensor."""
        if device not in self._attributes:
            model = FakeTensor(self._mode, torch.empty(0, device="meta"), device)
            self._attributes[device] = dict(model.__dict__)
        fake = torch.Tensor._make_subclass(
            FakeTensor, tensor, tensor.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        fake.__dict__.update(self._attributes[device])
        return fake


@cache
def has_fake(func) -> bool:
    """Whether an operator of torch has a fake implementation. torch does not tell one from what calls CUDA's kernel."""
    return func not in META_IS_CUDA and (
        func.namespace != "aten"
        or func in decomposition_table
        or any(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in _FAKE)
        or any(applies(func) for applies, _ in op_implementations_checks)
    )


def _those_asked_for(func, args: tuple, out: Any) -> Any:
    """Leave out results that ``output_mask`` says nobody needs: some fake implementations compute them all."""
    if not args or len(args) != len(func._schema.arguments) or func._schema.arguments[-1].name != "output_mask":
        return out
    return tuple(result if wanted else None for result, wanted in zip(out, args[-1], strict=True))


_RESULT = re.compile("Tensor|int|SymInt")
"""Types of results that are remembered: attention returns the lengths that it was given beside its tensors."""


@cache
def _makes_new_tensors(func) -> bool:
    """Whether an operator only creates tensors: it changes no argument, shares no storage and reads no values."""
    schema = func._schema
    reads_values = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return (
        not schema.is_mutable
        and all(result.alias_info is None and _RESULT.search(str(result.type)) for result in schema.returns)
        and bool(schema.returns)
        and not reads_values & set(func.tags)
    )


def _key(values: Iterable[Any]) -> tuple | None:
    """Cache key of a call: the shapes of its tensors and its other arguments. ``None``: the result depends on more."""
    key: list[Any] = []
    for value in values:
        if type(value) is FakeTensor:
            key.append((value.shape, value.stride(), value.dtype, value.fake_device))
        elif isinstance(value, torch.Tensor):
            return None
        elif isinstance(value, NESTED):
            inner = _key(value)
            if inner is None:
                return None
            key.append(inner)
        else:
            key.append((type(value), value))  # with the type, because 1 == 1.0
    return tuple(key)


def _description(out: Any) -> list[_Fresh | int | None] | _Fresh | None:
    """Describe tensors so that ``_new`` can recreate them; ``None`` if one has an offset or an unusual storage."""
    if isinstance(out, tuple):
        parts: list[Any] = [item if item is None or type(item) is int else _description(item) for item in out]
        ordinary = all(part is not None or item is None for part, item in zip(parts, out, strict=True))
        return parts if ordinary else None
    if type(out) is not FakeTensor or out.storage_offset():
        return None
    fresh = _Fresh(out.shape, out.stride(), out.dtype, out.fake_device)
    alone = torch.empty_strided(fresh.shape, fresh.strides, dtype=fresh.dtype, device="meta")
    return fresh if out.untyped_storage().nbytes() == alone.untyped_storage().nbytes() else None
