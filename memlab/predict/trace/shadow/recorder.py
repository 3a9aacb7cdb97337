"""Recorder of allocator events: a dispatch mode that sees every storage that is created or freed."""

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from memlab.core.sizes import MIB
from memlab.predict.trace.events import (
    Alloc,
    BeginPhase,
    BeginPoint,
    EmptyCache,
    Free,
    HostAlloc,
    HostFree,
    RecordStream,
    Synchronize,
)
from memlab.predict.trace.reduction_scratch import Scratch
from memlab.predict.trace.shadow import collectives, device, host, shapes
from memlab.predict.trace.shadow.allocation_sites import AllocationSites
from memlab.predict.trace.shadow.assumptions import Assumptions
from memlab.predict.trace.shadow.counting import Counter, tensors_in
from memlab.predict.trace.shadow.fake_results import FakeResults
from memlab.predict.trace.shadow.kernel import Blocks, Kernel
from memlab.predict.trace.shadow.libraries import Libraries
from memlab.predict.trace.shadow.live_allocator import LiveAllocator
from memlab.predict.trace.shadow.unpredictable import ONE_GPU, UnpredictableError
from memlab.predict.trace.shadow.values import Values
from memlab.predict.trace.trace_format import GENERATION, ROUTING, Trace

_aten = torch.ops.aten
_VALUE_OF = _aten._local_scalar_dense.default
_DEVICE = torch.ops.prim.device.default
_TO_COPY = _aten._to_copy.default
_WITH_INDICES = frozenset(
    {_aten.index.Tensor, _aten._unsafe_index.Tensor, _aten.index_put.default, _aten.index_put_.default}
)
_ADD, _ADD_IN_PLACE = _aten.add.Tensor, _aten.add_.Tensor

CHOSEN = {GENERATION: "from tokens that memlab chose", ROUTING: "from indices that memlab chose"}
"""Choice -> how a value was taken that follows from it."""

_DERIVATIVES_IN_PLACE = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
}
"""Operators of derivatives that write into new zeros: out of place for tensor subclasses such as fake tensors, in place
for ordinary tensors. Source: ``index_backward`` in ``torch/csrc/autograd/FunctionsManual.cpp``,
``value_selecting_reduction_backward`` in ``aten/src/ATen/native/ReduceOps.cpp``."""

_ON_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality

_ORDINARY = Kernel()
"""Kernel of an operator without a stand-in: it takes no memory but that of its result."""

_OWN_USES, _OWN_STORAGE_USES = 4, 2
"""Use counts of a gradient that only autograd holds, and of its storage, while it is an argument here. They include the
references of the call itself."""

OTHER_GPU_BYTES = MIB
"""Tensors on another GPU than the process uses are refused from this size on. Smaller ones are mistakes of scripts, as
of every rank on cuda:0, and are counted as the process's own."""

HOST_MINIMUM_BYTES = MIB
"""Host tensors below this are not recorded: they are many, and their sum is small."""


class HostBlock:
    """Memory of the host that is no storage of a tensor: of a numpy array, for example."""


class Recorder(TorchDispatchMode):
    """Dispatch mode that writes events into ``trace``. It is the only mode of a shadow run.

    A call on small host tensors alone really runs. All other calls are answered by ``fake_mode``, and their values are
    carried where they are known (shadow/values.py).
    """

    def __init__(self, trace: Trace, fake_mode: FakeTensorMode):
        super().__init__()
        self.trace = trace
        self.fake_mode = fake_mode
        self._results = FakeResults(fake_mode)
        self.values = Values()
        self.sites = AllocationSites(trace.sites)
        self.assumptions = Assumptions(trace.assumed)
        self.counter = Counter(trace, lambda: self.sites.module)
        self.libraries = Libraries(trace)
        self.allocator = LiveAllocator(trace)
        self.sizes_follow_values = False  # whether the program made a tensor whose size depends on values
        self.on_first_request: Callable[[], None] = lambda: None
        self.requests = 0  # device allocations so far, including workspaces: the clock of the replay
        self._requests_at: dict[int, int] = {}  # event -> requests when it was recorded
        self._events = trace.events
        self._alive: dict[int, weakref.ref] = {}
        self._next_key = 0
        self._gpu: int | None = None  # the one that this process uses
        self.kernels: dict[OpOverload, Kernel] = {}  # operators that a stand-in describes
        self.in_python: set[OpOverload] = set()  # operators whose own Python code for CUDA runs
        self._answers: dict[Any, Callable[..., Any]] = {
            _VALUE_OF: self._value,
            _aten.equal.default: self._equal,
            _aten.allclose.default: self._allclose,
            _aten.is_pinned.default: lambda tensor, *rest: device.is_pinned(tensor),
            _aten._pin_memory.default: self._pin_memory,
            _aten.record_stream.default: lambda tensor, stream: self.record_stream(tensor, stream.stream_id),
        }

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's check costs as much as the result

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is _DEVICE:  # the most frequent call by far
            return args[0].device
        if any(map(_wraps_tensors, types)):
            return NotImplemented  # then the class calls operators on the tensors inside, which come here again
        kwargs = kwargs or {}
        if _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)  # a library infers shapes, as DTensor does: that takes no memory
        if func in self._answers:
            return self._answers[func](*args, **kwargs)
        if func is _ADD and _accumulates(*args, **kwargs):
            func = _ADD_IN_PLACE
        elif func in _DERIVATIVES_IN_PLACE and _is_derivative():
            func = _DERIVATIVES_IN_PLACE[func]
        if host.runs(func, args, kwargs):
            out = func(*args, **kwargs)
            self._see(out, func, kwargs)
            self._count(func, args, kwargs, out)
            return out
        if func.namespace == "c10d":
            self.libraries.collective(func, args)
            out = collectives.answer(func, args, self.values)
            self._count(func, args, kwargs, out)
            return out
        if func in self.in_python:
            # Autograd is excluded here, and with it torch's own composition of operators from others.
            with self, torch.no_grad(), torch._C._SetExcludeDispatchKeyGuard(_AUTOGRAD, False):
                return func.redispatch(_ON_CUDA, *args, **kwargs)
        if func in _WITH_INDICES:
            args = (args[0], self._without_masks(args[1]), *args[2:])
        self.libraries.operator(func)
        kernel = self.kernels.get(func, _ORDINARY)
        owner = kernel.owner or func
        for sizes in kernel.launches(*args, **kwargs):
            self.counter.kernel(str(owner), *sizes)
        held = self._take(owner, kernel.temporaries(*args, **kwargs), kernel.has_tensors)
        out = self._result(func, args, kwargs)
        self._see(out[::-1] if kernel.last_result_first else out, func, kwargs)
        self._give_back(held)
        self._count(func, args, kwargs, out)
        self._give_back(self._take(owner, kernel.workspaces(*args, **kwargs), kernel.has_tensors))
        self._take(owner, kernel.kept(*args, **kwargs))
        return out

    def _count(self, func, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        if self.counter.on:
            self.counter.operator(func, args, kwargs, out)

    def _result(self, func, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return the result of a call without computing it, with its values where they are known."""
        if func in shapes.FROM_VALUES:
            return self._shaped_by_values(func, args, kwargs)
        if self.values.writes_to_host(func, args, kwargs):
            return args[0] if func._schema.returns else None
        out = self._results.of(func, args, device.with_index(kwargs))
        self.values.follow(func, args, kwargs, out)
        if func is _TO_COPY and out.device.type == "cpu":
            known = self.values.of(out)
            return out if known is None or self.values.choice_behind(out) else known
        return out

    def _without_masks(self, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Replace masks by the positions that they choose, as CUDA does; the positions take memory."""
        found: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                found.append(index)
            else:
                positions = self._dispatch(_aten.nonzero.default, index)
                found += [self._dispatch(_aten.select.int, positions, 1, dim) for dim in range(index.dim())]
        return found

    def _dispatch(self, func, *args) -> Any:
        return self.__torch_dispatch__(func, (), args)

    def _shaped_by_values(self, func, args: tuple, kwargs: dict[str, Any]) -> Any:
        self.sizes_follow_values = True
        found = self.values.before(func, args, kwargs)
        deciding = args[1:] if func is _aten.masked_select.default else args
        if found is None:
            self.assumptions.note("to choose all")
        elif choice := self.values.choice_behind(deciding):
            self._note_choice(choice)
        where = next(tensor.device for tensor in tensors_in(args) if isinstance(tensor, FakeTensor))
        outs = [self._results.empty(*each, where) for each in shapes.results(func, args, found)]
        for out, value in zip(outs, tensors_in(found), strict=False):
            self.values.give(out, value)
        return outs[0] if len(func._schema.returns) == 1 else tuple(outs)

    # --- operators that read values

    def _value(self, tensor: torch.Tensor) -> bool | int | float:
        """Return the result of ``tensor.item()``: the true value if it is known, or else that of a healthy run."""
        self._count(_VALUE_OF, (tensor,), {}, None)
        known = self.values.of(tensor)
        if known is None:
            return self._assume(tensor)
        self._note_if_assumed(tensor, decides_sizes=False)
        return known.item()

    def _note_if_assumed(self, tensor: torch.Tensor, decides_sizes: bool) -> None:
        """Note a read of values that follow from a choice. ``decides_sizes``: what is read may become sizes."""
        choice = self.values.choice_behind(tensor)
        if choice == GENERATION or (choice and decides_sizes):
            self._note_choice(choice)
        elif choice:
            self.assumptions.note(CHOSEN[choice])

    def _note_choice(self, choice: str) -> None:
        self.assumptions.note(CHOSEN[choice])
        if choice not in self.trace.choices:
            self.trace.choices.append(choice)

    def _equal(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        known = [self.values.of(tensor) for tensor in (first, second)]
        if any(value is None for value in known):
            self.assumptions.note("as False")
            return False
        return torch.equal(*known)

    def _allclose(self, first: torch.Tensor, second: torch.Tensor, *tolerances: float, **options: bool) -> bool:
        known = [self.values.of(tensor) for tensor in (first, second)]
        if any(value is None for value in known):
            self.assumptions.note("as True")
            return True
        return torch.allclose(*known, *tolerances, **options)

    def _pin_memory(self, tensor: torch.Tensor, *rest, **options) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            out = self._results.of(_aten.empty_like.default, (tensor,), {})
            self.values.follow(_aten.clone.default, (tensor,), {}, out)
        else:
            out = tensor.clone()
        self._see(out, _aten._pin_memory.default, {"pin_memory": True})
        return out

    def _assume(self, tensor: torch.Tensor) -> bool | int | float:
        """Return an element of an unknown tensor as in a healthy run, and note where the program asked for it.

        In a healthy run nothing overflows and every norm is finite.
        """
        value = self.values.healthy(tensor)
        self.assumptions.note(f"as {value}")
        return value

    # --- events other than operators

    def phase(self, name: str | None) -> None:
        """Begin a phase (``None``: outside any phase) and reset the phase peaks."""
        name = name or ""
        if name not in self.trace.phases:
            self.trace.phases.append(name)
        index = self.trace.phases.index(name)
        self._events.append(BeginPhase(index))
        self.counter.phase(index)

    def start_over(self) -> None:
        """Reset the peaks of the run at the first step, after everything has been built."""
        self._events.append(BeginPoint())

    def stop(self) -> None:
        """Stop recording, and copy the counted work into the trace."""
        self._events = []
        self.libraries.notes = False
        self.counter.stop()
        self.trace.work.extend(self.counter.items)
        self.trace.events_before.extend(self.counter.events_before)

    def record_event(self, event: int, stream: int) -> None:
        """Record that ``event`` was put into ``stream``: a wait for it is a wait for the work launched until now."""
        self._requests_at[event] = self.requests
        self.counter.record(event, stream)

    def synchronize(self, event: int | None = None) -> None:
        """Record that the host waited for the work launched before ``event`` was recorded, or for all work."""
        self._events.append(Synchronize(self.requests if event is None else self._requests_at[event]))
        self.counter.host_waits(event)

    def library_call(self, function: str, tensors: Iterable[torch.Tensor]) -> None:
        """Count a call into compiled code (:meth:`Counter.library_call`), and forget the floats that it may write."""
        tensors = list(tensors)
        self.counter.library_call(function, tensors)
        for tensor in tensors:
            if tensor.is_floating_point():
                self.values.forget(tensor)

    def real(self, tensor: FakeTensor) -> torch.Tensor:
        """Return a host tensor with the values of ``tensor``, or with those of a healthy run."""
        known = self.values.of(tensor)
        if known is not None:
            self._note_if_assumed(tensor, decides_sizes=torch.is_grad_enabled())
            return known
        healthy = _aten.full.default([], self._assume(tensor), dtype=tensor.dtype, device=torch.device("cpu"))
        return healthy.expand(tensor.shape)

    def fake(self, tensor: torch.Tensor) -> FakeTensor:
        """Return a fake host tensor like ``tensor``, without its values, in place of ``tensor``."""
        out = self._results.strided(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        storage = tensor.untyped_storage()
        if hasattr(storage, "_memlab_key"):
            self._watch(out.untyped_storage(), storage._memlab_key, HostFree)
            del storage._memlab_key
        self._see(out, None, {})
        return out

    def host_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> FakeTensor:
        """Return a fake tensor on the host, in memory of its own."""
        out = self._results.empty(shape, dtype, torch.device("cpu"))
        self._see(out, None, {})
        return out

    def host_block(self, nbytes: int) -> HostBlock:
        """Record memory of the host that lives as long as the object that is returned."""
        block = HostBlock()
        self._see_host(block, nbytes, pinned=False)
        return block

    def empty_cache(self) -> None:
        self._events.append(EmptyCache())

    def set_allocator(self, settings: str) -> None:
        """Record settings of the allocator, in the form of PYTORCH_ALLOC_CONF: they hold beside the earlier ones."""
        self.trace.allocator_conf = ",".join(filter(None, [self.trace.allocator_conf, settings]))
        if self.requests:
            self.trace.unknown["allocator settings"] = "changed while the script ran, and taken as if set at its start"
        else:
            self.allocator.configure(self.trace.allocator_conf)

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        key = getattr(tensor.untyped_storage(), "_memlab_key", None)
        if key is not None:
            self._events.append(RecordStream(key, stream))

    # --- storages

    def _see(self, out, func, options: dict[str, Any]) -> None:
        """Record every new storage in ``out``, a tensor or nested lists and tuples of tensors."""
        if isinstance(out, torch.Tensor):
            self._see_tensor(out, func, bool(options.get("pin_memory")))
        elif isinstance(out, tuple | list):
            for item in out:
                self._see(item, func, options)

    def _see_tensor(self, tensor: torch.Tensor, func, pinned: bool) -> None:
        storage = tensor.untyped_storage()
        if hasattr(storage, "_memlab_key"):
            return
        nbytes = storage.nbytes()
        if nbytes == 0:
            return
        if tensor.device.type == device.NAME:
            self._see_device(storage, nbytes, tensor, func)
        elif tensor.device.type == "cpu":  # meta tensors have no memory
            if pinned:
                storage._memlab_pinned = True
            if nbytes >= HOST_MINIMUM_BYTES:
                self._see_host(storage, nbytes, pinned)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Record that a storage on the device was freed and allocated again with its new size."""
        site = getattr(storage, "_memlab_site", None)
        if site is None:
            return
        self.values.forget_storage(storage)
        if hasattr(storage, "_memlab_key"):
            key = storage._memlab_key
            del storage._memlab_key, self._alive[key]  # with the weak reference goes its callback
            self._events.append(Free(key))
        if storage.nbytes():
            self._hold(storage, storage.nbytes(), site)

    def _see_device(self, storage, nbytes: int, tensor: torch.Tensor, func) -> None:
        if nbytes >= OTHER_GPU_BYTES:
            self._check_gpu(tensor.device.index)
        storage._memlab_site = self.sites.of(tensor, nbytes, func)
        self._hold(storage, nbytes, storage._memlab_site)

    def _check_gpu(self, index: int) -> None:
        """Refuse memory on a second GPU: a trace has the allocator of one."""
        self._gpu = index if self._gpu is None else self._gpu
        if index != self._gpu:
            raise UnpredictableError(
                f"the process has tensors on cuda:{self._gpu} and puts others on cuda:{index}, and {ONE_GPU}"
            )

    def _hold(self, storage, nbytes: int, site: int) -> None:
        """Record that a storage on the device was allocated, and that it is freed when it is gone."""
        key = self._new_key()
        self._request(key, nbytes, site)
        self._watch(storage, key, Free)

    def _see_host(self, storage, nbytes: int, pinned: bool) -> None:
        key = self._new_key()
        self._events.append(HostAlloc(key, nbytes, pinned))
        self._watch(storage, key, HostFree)

    def _watch(self, storage, key: int, freed: type[Free | HostFree]) -> None:
        """Record when ``storage`` is gone."""
        storage._memlab_key = key

        def gone(_, key=key, freed=freed):
            del self._alive[key]
            self._events.append(freed(key))

        self._alive[key] = weakref.ref(storage, gone)

    def _take(self, owner: object, blocks: Blocks, are_tensors: bool = False) -> list[int]:
        """Record allocations of a kernel and return their keys, for ``_give_back`` when the kernel is done."""
        keys = []
        for block in blocks:
            nbytes, reduction = (block, None) if isinstance(block, int) else (block.buffer_bytes, block)
            keys.append(self._new_key())
            site = self.sites.of_temporary if are_tensors else self.sites.of_workspace
            self._request(keys[-1], nbytes, site(str(owner), nbytes), reduction)
        return keys

    def _give_back(self, keys: Iterable[int]) -> None:
        self._events.extend(map(Free, keys))

    def _request(self, key: int, nbytes: int, site: int, reduction: Scratch | None = None) -> None:
        if not self.requests:
            self.on_first_request()
        self._events.append(Alloc(key, nbytes, device.current_stream(), site, reduction))
        self.requests += 1

    def _new_key(self) -> int:
        self._next_key += 1
        return self._next_key


@functools.cache
def _wraps_tensors(kind: type) -> bool:
    """Whether a class of tensors has no memory of its own, but holds other tensors: DTensor, for example."""
    return hasattr(kind, "__tensor_flatten__")


def _accumulates(first, second, *scale, **options) -> bool:
    """Whether this ``add`` is autograd accumulating a gradient that it would accumulate in place on a real device.

    Autograd adds in place if only autograd holds the first gradient and the gradient has its own dense memory. It never
    does so for tensor subclasses such as fake tensors.
    Source: ``torch/csrc/autograd/input_buffer.cpp``. No derivative in torch adds two whole tensors itself.
    """
    if not _is_derivative() or scale or options:
        return False
    caller = sys._getframe(1).f_back  # None in autograd's own threads
    return (
        (caller is None or caller.f_code.co_name == "_engine_run_backward")
        and isinstance(second, torch.Tensor)
        and first.shape == second.shape
        and _is_dense(first)
        and first._use_count() <= _OWN_USES
        and torch._C._storage_Use_Count(first.untyped_storage()._cdata) <= _OWN_STORAGE_USES
    )


def _is_derivative() -> bool:
    """Whether autograd computes a gradient now; false while a checkpoint recomputes its forward."""
    return torch._C._current_autograd_node() is not None and not torch.is_grad_enabled()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps and without overlap (no expanded dimension)."""
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() == 1 + sum((size - 1) * stride for size, stride in extents)
