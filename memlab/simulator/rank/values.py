"""Values of fake tensors: integers, masks and small floats, computed on the host beside the shapes.

A storage of a fake tensor may own real host memory of the same size, its values. Views share the storage, so they share
the values too, and a write through one view is seen through all. An operator whose tensors all have values is also run
on the values. If one lacks them, the results have none, and what the operator writes to loses its own.

What an operator says of unknown floats (are they finite, is this one less than that) is what it says of a healthy one,
``HEALTHY``, and so is what follows from that.

Indices that an operator chooses by unknown floats (tokens by their logits, experts by their scores) are assumed values:
rank/choices.py chooses them. What follows from them is assumed, too.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from memlab.meters.nested_tensors import NESTED, tensors_in
from memlab.simulator.rank.choices import Choices
from memlab.simulator.rank.unpredictable import OWN_STAND_IN, UnpredictableError
from memlab.simulator.trace.trace_format import GENERATION, ROUTING

_aten = torch.ops.aten
_HOST = torch.device("cpu")

MOST_BYTES = 8 << 20
"""Integers and masks up to this size have values: the batches, labels, positions and masks of 2,048 x 2,048 tokens."""

MOST_FLOATS = 4096
"""Floats up to this number have values: counts, rates, weights of losses. Larger ones are activations or weights."""

_OVERWRITES = frozenset({_aten.copy_.default, _aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default})
"""Operators that write every element of their first argument, and do not read it."""

_UNWRITTEN = frozenset({_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided})
"""Operators whose result is not yet written. Indices and masks count as zeros, because a program writes them before it
reads them; other results have no values."""

_FILLED = {
    _aten.zeros_like: lambda args: 0,
    _aten.new_zeros: lambda args: 0,
    _aten.ones_like: lambda args: 1,
    _aten.new_ones: lambda args: 1,
    _aten.full_like: lambda args: args[1],
    _aten.new_full: lambda args: args[2],
}
"""Operators that need only the shape of their first argument -> the value of every element, from the arguments."""

_CHOOSING = frozenset({_aten.argmax, _aten.argmin, _aten.max, _aten.min, _aten.multinomial, _aten.sort, _aten.topk})
"""Operators that return indices which depend on the floats in their first argument."""

_COUNTING = frozenset({_aten.sum, _aten.count_nonzero})
"""Operators that count what a mask selects: all, where it is unknown, as ``nonzero`` then selects."""

MOST_CHOICES = 16 << 20
"""Elements that indices are chosen from, at most: 128 rows of 128 Ki logits."""

HEALTHY = 1.0
"""An unknown float where a program needs it: finite, neither zero nor large."""

_TROUBLE = "found_inf"
"""Argument in which operators report an overflow. A healthy run has none, so that they leave it as it is."""

_INDICES = (torch.int64, torch.int32, torch.bool)


class Values:
    """Gives storages of fake tensors their values, and follows operators."""

    def __init__(self):
        self._facts_of = cache(_Facts)
        self.choices = Choices()
        self._takes = False  # whether any tensor has the value of a healthy run

    def of(self, tensor: torch.Tensor) -> Any:
        """Return a host tensor with the values of ``tensor``, or ``None``. Writing to it changes the values."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        memory = getattr(tensor.untyped_storage(), "_memlab_values", None)
        if memory is None:
            return None
        with _disable_current_modes():
            view = _aten.empty.memory_format([0], dtype=tensor.dtype, device=_HOST)
            place = (tensor.storage_offset(), tensor.shape, tensor.stride())
            return _aten.set_.source_Storage_storage_offset(view, memory, *place)

    def forget(self, tensor: torch.Tensor) -> None:
        """Drop the values of the memory of ``tensor``: something unknown was written to it."""
        self.forget_storage(tensor.untyped_storage())

    def forget_storage(self, storage: torch.UntypedStorage) -> None:
        for name in ("_memlab_values", "_memlab_assumed", "_memlab_taken"):
            if hasattr(storage, name):
                delattr(storage, name)

    def choice_behind(self, values: Any) -> str | None:
        """What was chosen that values of tensors in ``values`` follow from (``GENERATION``, ``ROUTING``), if any."""
        fakes = (tensor for tensor in tensors_in(values) if isinstance(tensor, FakeTensor))
        kinds = (getattr(tensor.untyped_storage(), "_memlab_assumed", None) for tensor in fakes)
        return next((kind for kind in kinds if kind), None)

    def healthy(self, tensor: torch.Tensor) -> bool | int | float:
        """The value of every element of ``tensor``, which has no values, in a healthy run."""
        taken = getattr(tensor.untyped_storage(), "_memlab_taken", None)
        if taken is not None:
            return taken
        return False if tensor.dtype is torch.bool else HEALTHY if tensor.dtype.is_floating_point else 0

    def give(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Make ``value``, a host tensor, the values of ``tensor``, which has a fresh storage of its own."""
        storage = tensor.untyped_storage()
        memory = value.untyped_storage()
        same = value.stride() == tensor.stride() and value.storage_offset() == tensor.storage_offset()
        if same and value.dtype is tensor.dtype and memory.nbytes() == storage.nbytes():
            storage._memlab_values = memory
            return
        self._make_room(tensor)
        with _disable_current_modes():
            self.of(tensor).copy_(value)

    def write(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Write ``value`` into ``tensor``, which may be a part of a storage."""
        if isinstance(tensor, FakeTensor):
            if not self._can_be_overwritten(tensor):
                return
            self._make_room(tensor)
        with _disable_current_modes(), torch.no_grad():
            self.of(tensor).copy_(value)

    def before(self, func, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an operator whose result's shape depends on values. Returns ``None`` if the values are unknown."""
        facts = self._facts_of(func)
        return self._run(facts, func, args, kwargs) if self._are_known(facts, func, args, kwargs) else None

    def selected(self, mask: torch.Tensor) -> torch.Tensor | None:
        """Return the positions that an unknown mask selects, on the host; ``None``: they are too many to be known."""
        if mask.numel() * max(mask.dim(), 1) * 8 > MOST_BYTES:
            return None
        with _disable_current_modes():
            return _aten.full.default(list(mask.shape), self.choices.selects_all, device=_HOST).nonzero()

    def writes_to_host(self, func, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether the call writes into real host tensors, which are then written: as in a healthy run where unknown."""
        facts = self._facts_of(func)
        if not facts.is_mutable:
            return False
        real = [tensor for tensor in facts.written(args, kwargs) if not isinstance(tensor, FakeTensor)]
        if not real:
            return False
        known = self._are_known(facts, func, args, kwargs) and self._run(facts, func, args, kwargs) is not None
        if not known:
            with _disable_current_modes(), torch.no_grad():
                for tensor in real:
                    tensor.fill_(1 if tensor.is_floating_point() else 0)
        return True

    def follow(self, func, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        """Carry values through a call of ``func`` that returned the fake ``out``."""
        facts = self._facts_of(func)
        if facts.is_view:
            return
        if facts.is_unwritten and out.dtype in _INDICES and _may_have_values(out):
            self._make_room(out)
            return
        if facts.fill is not None:
            if _may_have_values(out):
                self._make_room(out)
                self.of(out).fill_(facts.fill(args))
            return
        if self._are_known(facts, func, args, kwargs) and all(_may_have_values(each) for each in tensors_in(out)):
            found = self._run(facts, func, args, kwargs)
            if found is not None:
                self._give_all(out, found)
                if choice := self.choice_behind((args, kwargs)):
                    self.mark_assumed((out, list(facts.written(args, kwargs))), choice)
                return
        elif facts.chooses and args[0].is_floating_point() and self._choose(facts, func, args, kwargs, out):
            return
        taken = self._taken(facts, func, args, kwargs, out)
        if facts.is_mutable:
            for tensor in facts.written(args, kwargs):
                self.forget(tensor)
        if taken is not None and (not facts.is_mutable or _is_whole(out)):
            out.untyped_storage()._memlab_taken = taken
            self._takes = True

    def _taken(self, facts: "_Facts", func, args: tuple, kwargs: dict[str, Any], out: Any) -> bool | int | float | None:
        """The value in a healthy run of a condition on unknown values, or of what follows from one."""
        if not isinstance(out, torch.Tensor) or not facts.has_values or facts.is_random:
            return None
        first = args[0] if args and isinstance(args[0], torch.Tensor) else out
        counts = func.overloadpacket in _COUNTING and not first.is_floating_point() and out.numel()
        if counts and (each := self._selects(first)) is not None:
            number = first.numel() // out.numel() * int(each)
            return float(number) if out.is_floating_point() else number
        given = tensors_in((args, kwargs)) if self._takes else ()
        follows = any(hasattr(tensor.untyped_storage(), "_memlab_taken") for tensor in given)
        if torch.bool in (out.dtype, first.dtype) or follows:
            found = self._run(facts, func, *tree_map(self._one_healthy, (args, kwargs)))
            if isinstance(found, torch.Tensor) and found.numel() == 1:
                return found.item()
        return None

    def _selects(self, mask: torch.Tensor) -> bool | int | float | None:
        """What each element of an unknown mask, or of what follows from one, is taken for; ``None``: no such tensor."""
        taken = getattr(mask.untyped_storage(), "_memlab_taken", None)
        return self.choices.selects_all if taken is None and mask.dtype is torch.bool and mask.numel() > 1 else taken

    def _one_healthy(self, value: Any) -> Any:
        """Return in place of a tensor a host tensor of one element, with its value in a healthy run."""
        if not isinstance(value, torch.Tensor):
            return value
        known = self.of(value) if value.numel() else None
        with _disable_current_modes():
            if known is not None:
                return known.reshape(-1)[:1].clone().reshape([1] * value.dim())
            selects = self._selects(value)
            element = self.healthy(value) if selects is None else selects
            return _aten.full.default([1] * value.dim(), element, dtype=value.dtype, device=_HOST)

    def _choose(self, facts: "_Facts", func, args: tuple, kwargs: dict[str, Any], out: Any) -> bool:
        """Give the indices in ``out`` the values that are chosen for unknown floats. ``False``: there are none, or too
        many to choose from."""
        indices_of = tensors_in(out)[-1]  # behind the values that they choose
        with _disable_current_modes():
            tokens = self.choices.next_tokens(func, args[0].shape[-1], indices_of.shape) if args[0].dim() else None
            if tokens is not None:
                self.give(indices_of, tokens)
                self.mark_assumed(indices_of, GENERATION)
                return True
            if args[0].numel() > MOST_CHOICES:
                return False
            floats = self.choices.scores(list(args[0].shape))
        chosen = self._run(facts, func, (floats, *args[1:]), kwargs)
        if chosen is None:
            raise UnpredictableError(
                f"{func} chooses by unknown values, and cannot be run on the host to choose for it: "
                f"{args[0].dtype}, {' x '.join(map(str, args[0].shape))}. Predict without it, or {OWN_STAND_IN}"
            )
        found = zip(tensors_in(out), tensors_in(chosen), strict=True)
        indices = [(tensor, value) for tensor, value in found if value.dtype is torch.int64]
        for tensor, value in indices:
            self.give(tensor, value)
            self.mark_assumed(tensor, ROUTING)
        return bool(indices)

    def mark_assumed(self, tensors: Any, choice: str) -> None:
        """Note that the values of tensors follow from a choice."""
        for tensor in tensors_in(tensors):
            tensor.untyped_storage()._memlab_assumed = choice

    def _give_all(self, out: Any, found: Any) -> None:
        """Give results their values, but for those that only CUDA's kernel or only the host's one fills."""
        for tensor, value in zip(tree_leaves(out), tree_leaves(found), strict=True):
            if tensor is None:  # a gradient that nobody asked for
                continue
            has_some = not isinstance(tensor, FakeTensor) or hasattr(tensor.untyped_storage(), "_memlab_values")
            if not has_some and tensor.shape == value.shape and not _repeats(tensor):
                self.give(tensor, value)

    def _are_known(self, facts: "_Facts", func, args: tuple, kwargs: dict[str, Any]) -> bool:
        if not facts.has_values:
            return False
        overwritten = None
        if func in _OVERWRITES:
            overwritten = args[0]
            if isinstance(overwritten, FakeTensor) and not self._can_be_overwritten(overwritten):
                return False
        for tensor in tensors_in((args, kwargs)):
            if tensor is overwritten:
                continue
            if isinstance(tensor, FakeTensor):
                if not hasattr(tensor.untyped_storage(), "_memlab_values"):
                    return False
            elif not _may_have_values(tensor):
                return False
            if tensor.numel() > MOST_BYTES:  # an expanded view: few values, many elements
                return False
        if overwritten is not None and isinstance(overwritten, FakeTensor):
            self._make_room(overwritten)
        return True

    def _can_be_overwritten(self, tensor: torch.Tensor) -> bool:
        """Whether the whole storage of ``tensor`` is known after ``tensor`` was written."""
        is_known = hasattr(tensor.untyped_storage(), "_memlab_values")
        return is_known or (_is_whole(tensor) and _may_have_values(tensor))

    def _make_room(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if not hasattr(storage, "_memlab_values"):
            with _disable_current_modes():
                memory = _aten.zeros.default([storage.nbytes()], dtype=torch.uint8, device=_HOST)
                storage._memlab_values = memory.untyped_storage()

    def _run(self, facts: "_Facts", func, args: tuple, kwargs: dict[str, Any]) -> Any:
        options = {
            name: _HOST if name == "device" and value is not None else self._on_host(value)
            for name, value in kwargs.items()
            if name not in ("pin_memory", "generator")
        }
        try:
            with _disable_current_modes(), torch.no_grad():
                if not facts.is_random:
                    return func(*self._on_host(args), **options)
                with self.choices.own_random_state():
                    return func(*self._on_host(args), **options)
        except (RuntimeError, NotImplementedError, IndexError):  # the host has no kernel for it
            return None

    def _on_host(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.of(value)
        return [self._on_host(item) for item in value] if isinstance(value, NESTED) else value


class _Facts:
    """Properties of an operator that follow from its schema."""

    def __init__(self, func):
        schema = func._schema
        self.is_view = func.is_view
        self.is_mutable = schema.is_mutable
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.is_unwritten = func.overloadpacket in _UNWRITTEN
        self.has_values = func.namespace in ("aten", "prims") and not self.is_unwritten
        self.chooses = func.overloadpacket in _CHOOSING and bool(schema.arguments)
        self.fill = _FILLED.get(func.overloadpacket)
        self._written = [
            (index, argument.name)
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name != _TROUBLE
        ]

    def written(self, args: tuple, kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
        for index, name in self._written:
            yield from tensors_in(args[index] if index < len(args) else kwargs.get(name))


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _repeats(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor lie in one place, as in an expanded one."""
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _may_have_values(tensor: torch.Tensor) -> bool:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.numel() <= MOST_FLOATS
    return tensor.numel() * tensor.element_size() <= MOST_BYTES
