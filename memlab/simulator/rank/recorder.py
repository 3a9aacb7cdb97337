"""Recorder of a shadow run: a dispatch mode that answers every call of an operator, and notes its memory and its work.

in_place.py: which operator it is for ordinary tensors -> fake_results.py, values.py, value_reads.py: its result ->
memory_events.py: what it requests and frees -> counting.py: its kernels.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch._C._dynamo import eval_frame
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from memlab.meters.nested_tensors import tensors_in
from memlab.simulator.rank import collectives, device, host_random, in_place, real_calls, shapes
from memlab.simulator.rank.allocation_sites import AllocationSites
from memlab.simulator.rank.assumptions import Assumptions
from memlab.simulator.rank.counting import Counter
from memlab.simulator.rank.fake_results import VIEWS, FakeResults
from memlab.simulator.rank.kernel import Kernel
from memlab.simulator.rank.libraries import Libraries
from memlab.simulator.rank.memory_events import LiveAllocator, MemoryEvents
from memlab.simulator.rank.untracked import Untracked
from memlab.simulator.rank.value_reads import ValueReads
from memlab.simulator.rank.values import Values
from memlab.simulator.trace.trace_format import SELECTION, Trace

_aten = torch.ops.aten
_VALUE_OF = _aten._local_scalar_dense.default
_DEVICE = torch.ops.prim.device.default
_TO_COPY = _aten._to_copy.default
_WAIT = torch.ops._c10d_functional.wait_tensor.default
WITH_INDICES = frozenset(
    {_aten.index.Tensor, _aten._unsafe_index.Tensor, _aten.index_put.default, _aten.index_put_.default}
)

_compiling, _compile_by = eval_frame.get_eval_frame_callback, eval_frame.set_eval_frame

_WITH_RANDOM_STATE = "graphsafe_run_with_rng_state"
"""Operator of compiled graphs that calls its first argument with a random state."""

_ON_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class Recorder(TorchDispatchMode):
    """Dispatch mode that writes events into ``trace``. It is the only mode of a shadow run.

    A call on small host tensors alone really runs. All other calls are answered by ``fake_mode``, and their values are
    carried where they are known (rank/values.py).
    """

    supports_higher_order_operators = True

    def __init__(self, trace: Trace, fake_mode: FakeTensorMode):
        super().__init__()
        self.trace = trace
        self.fake_mode = fake_mode
        self._results = FakeResults(fake_mode)
        self.values = Values()
        self.sites = AllocationSites(trace.sites)
        self.memory = MemoryEvents(trace.events, self.sites)
        self.assumptions = Assumptions(trace.assumed)
        self.reads = ValueReads(self.values, self.assumptions, trace.choices)
        self.counter = Counter(trace, lambda: self.sites.module)
        self.libraries = Libraries(trace, lambda: self.memory.number_of(device.current()))
        self.allocator = LiveAllocator(trace)
        self._untracked = Untracked(trace.events, self.counter.items, trace.sites)
        self.sizes_follow_values = False  # whether the program made a tensor whose size depends on values
        self.kernels: dict[OpOverload, Kernel] = {}  # operators that a stand-in describes
        self.in_python: set[OpOverload] = set()  # operators whose own Python code for CUDA runs
        self.answers: dict[Any, Callable[..., Any]] = {
            _VALUE_OF: self._value,
            _aten.equal.default: functools.partial(self.reads.compared, torch.equal, False),
            _aten.allclose.default: functools.partial(self.reads.compared, torch.allclose, True),
            _aten.is_pinned.default: lambda tensor, *rest: device.is_pinned(tensor),
            _aten._pin_memory.default: self._pin_memory,
            _WAIT: self._wait,
            _aten.record_stream.default: lambda tensor, stream: self.memory.record_stream(tensor, stream.stream_id),
        }

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # __torch_dispatch__ itself does what is needed; torch's check costs as much as a result

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # the compiler switches the mode off while it compiles

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if _compiling() is not None:  # between compiled graphs: what memlab runs shall not be compiled
            before = _compile_by(None)
            try:
                return self.__torch_dispatch__(func, types, args, kwargs)
            finally:
                _compile_by(before)
        if isinstance(func, HigherOrderOperator):
            if func.name() != _WITH_RANDOM_STATE:
                raise NotImplementedError(f"There was no rule registered for HigherOrderOperator {func.name()}")
            with self:
                return args[0](*args[1:], **{name: each for name, each in kwargs.items() if name != "rng_state"})
        if func is _DEVICE:  # the most frequent call by far
            return device.of(args[0])
        if any(map(_wraps_tensors, types)):
            return NotImplemented  # then the class calls operators on the tensors inside, which come here again
        kwargs = kwargs or {}
        if _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)  # a library infers shapes, as DTensor does: that takes no memory
        if func in VIEWS and type(args[0]) is FakeTensor:
            return self._noted(self._results.of(func, args, kwargs), func, args, kwargs)
        if func in self.answers:
            return self.answers[func](*args, **kwargs)
        if is_made_of_others(func):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        func = in_place.for_ordinary_tensors(func, args, kwargs)
        if real_calls.runs(func, args, kwargs):
            return self._noted(func(*args, **kwargs), func, args, kwargs)
        if func.namespace == "c10d":
            self.libraries.collective(func, args)
            out = collectives.answer(func, args, self.values)
            self._count(func, args, kwargs, out)
            return out
        if func in self.in_python:
            # Autograd is excluded here, and with it torch's own composition of operators from others.
            with self, torch.no_grad(), torch._C._SetExcludeDispatchKeyGuard(_AUTOGRAD, False):
                return func.redispatch(_ON_CUDA, *args, **kwargs)
        if len(self.memory.gpus) > 1:
            kwargs = device.with_index(kwargs)
            place = next((tensor.device.index for tensor in tensors_in((args, kwargs)) if device.is_on(tensor)), -1)
            with device.on(place):  # as torch calls kernels
                return self._computed(func, args, kwargs)
        return self._computed(func, args, kwargs)

    def _noted(self, out: Any, func, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Record the memory and the work of a call that takes no memory but that of its result; return the result."""
        self._see(out, func, kwargs)
        self._count(func, args, kwargs, out)
        return out

    def _computed(self, func, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return the result of a call on the device, and record what its kernels take."""
        if func in WITH_INDICES:
            args = (args[0], self._without_masks(args[1]), *args[2:])
        self.libraries.operator(func, args)
        kernel = self.kernels.get(func)
        if kernel is None:
            return self._noted(self._result(func, args, kwargs), func, args, kwargs)
        owner = kernel.owner or func
        for sizes in kernel.launches(*args, **kwargs):
            self.counter.kernel(str(owner), *sizes)
        held = self.memory.take(owner, kernel.temporaries(*args, **kwargs), kernel.has_tensors)
        out = self._result(func, args, kwargs)
        self._see(out[::-1] if kernel.last_result_first else out, func, kwargs)
        self.memory.give_back(held)
        self._count(func, args, kwargs, out)
        for blocks in (kernel.workspaces, kernel.further):
            self.memory.give_back(self.memory.take(owner, blocks(*args, **kwargs), kernel.has_tensors))
        self.memory.take(kernel.keeper or owner, kernel.kept(*args, **kwargs))
        self.memory.may_take(kernel.spare(out, *args, **kwargs))
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
        if func in host_random.TAKING:
            host_random.take(func, out, kwargs.get("generator"))
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
        selected = None if found is not None or func is not _aten.nonzero.default else self.values.selected(args[0])
        deciding = args[1:] if func is _aten.masked_select.default else args
        if found is None:
            self.reads.note_choice(SELECTION)
        elif choice := self.values.choice_behind(deciding):
            self.reads.note_choice(choice)
        where = next(tensor.device for tensor in tensors_in(args) if isinstance(tensor, FakeTensor))
        outs = [
            self._results.empty(*each, where)
            for each in shapes.results(func, args, found, self.values.choices.selects_all)
        ]
        for out, value in zip(outs, tensors_in((found, selected)), strict=False):
            self.values.give(out, value)
        if selected is not None:
            self.values.mark_assumed(outs, SELECTION)
        return outs[0] if len(func._schema.returns) == 1 else tuple(outs)

    def _value(self, tensor: torch.Tensor) -> bool | int | float:
        self._count(_VALUE_OF, (tensor,), {}, None)
        return self.reads.item(tensor)

    def _wait(self, tensor: torch.Tensor) -> torch.Tensor:
        """Wait for a functional collective: the tensor that it returned is the result, not a new one."""
        self.counter.wait_for_collective(self.counter.last_collective())
        return tensor

    def _see(self, out: Any, func: Any, options: dict[str, Any]) -> None:
        self.memory.see(out, func, pinned=bool(options.get("pin_memory")))

    # --- tensors on the host

    def _pin_memory(self, tensor: torch.Tensor, *rest, **options) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            out = self._results.of(_aten.empty_like.default, (tensor,), {})
            self.values.follow(_aten.clone.default, (tensor,), {}, out)
        else:
            out = tensor.clone()
        self.memory.see(out, pinned=True)
        return out

    def fake(self, tensor: torch.Tensor) -> FakeTensor:
        """Return a fake host tensor like ``tensor``, without its values, in place of ``tensor``."""
        out = self._results.strided(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        self.memory.replaced(tensor.untyped_storage(), out.untyped_storage())
        self.memory.see(out)
        return out

    def host_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> FakeTensor:
        """Return a fake tensor on the host, in memory of its own."""
        out = self._results.empty(shape, dtype, torch.device("cpu"))
        self.memory.see(out)
        return out

    def in_block(
        self, shape: Sequence[int], dtype: torch.dtype, place: torch.device, key: int, site: int
    ) -> FakeTensor:
        """Return a fake tensor on the device, in a block whose request has been written."""
        out = self._results.empty(shape, dtype, place)
        self.memory.lies_in(out.untyped_storage(), key, site, place.index)
        return out

    # --- what happens beside operators

    def phase(self, name: str | None) -> None:
        """Begin a phase (``None``: outside any phase) and reset the phase peaks."""
        index = self.trace.phase_number(name or "")
        self.memory.phase(index)
        self.counter.phase(index)

    def stop(self) -> None:
        """Stop recording, and copy the counted work into the trace."""
        self.memory.stop()
        self.libraries.notes = False
        self.counter.stop()
        self.trace.work.extend(self.counter.items)
        self.trace.events_before.extend(self.counter.events_before)

    def record_event(self, event: int, stream: int) -> None:
        """Record that ``event`` was put into ``stream``: a wait for it is a wait for the work launched until now."""
        self.memory.record_event(event)
        self.counter.record(event, stream)

    def synchronize(self, event: int | None = None) -> None:
        """Record that the host waited for the work launched before ``event`` was recorded, or for all work."""
        self.memory.synchronize(event)
        self.counter.host_waits(event)

    def library_call(self, function: str, tensors: Iterable[torch.Tensor]) -> None:
        """Count a call into compiled code (:meth:`Counter.library_call`), and forget the floats that it may write."""
        tensors = list(tensors)
        self.counter.library_call(function, tensors)
        for tensor in tensors:
            if tensor.is_floating_point():
                self.values.forget(tensor)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Record that a storage has got a new size: one on the device is freed and allocated again, without values."""
        if self.memory.resized(storage):
            self.values.forget_storage(storage)

    def set_allocator(self, settings: str) -> None:
        """Record settings of the allocator, in the form of PYTORCH_ALLOC_CONF: they hold beside the earlier ones."""
        self.trace.allocator_conf = ",".join(filter(None, [self.trace.allocator_conf, settings]))
        if self.memory.requests:
            self.trace.unknown["allocator settings"] = "changed while the script ran, and taken as if set at its start"
        else:
            self.allocator.configure(self.trace.allocator_conf)


@functools.cache
def is_made_of_others(func: OpOverload) -> bool:
    """Whether torch composes an operator of others above its dispatch modes, unless autograd is excluded, as by
    ``torch.inference_mode``. Operators with a kernel of their own for CUDA are called as they are."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(func.name(), _COMPOSITE) and not has_kernel(func.name(), "CUDA")


@functools.cache
def _wraps_tensors(kind: type) -> bool:
    """Whether a class of tensors has no memory of its own, but holds other tensors: DTensor, for example."""
    return hasattr(kind, "__tensor_flatten__")
