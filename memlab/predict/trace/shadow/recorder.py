"""Recorder of allocator events: a dispatch mode that sees every storage that is created or freed."""

import contextlib
import sys
import weakref
from collections.abc import Iterable

import torch
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
from memlab.predict.trace.reduction_scratch import Reduction
from memlab.predict.trace.shadow import device
from memlab.predict.trace.shadow.allocation_sites import AllocationSites
from memlab.predict.trace.shadow.counting import Counter
from memlab.predict.trace.shadow.fake_results import FakeResults
from memlab.predict.trace.shadow.kernel import Blocks, Kernel
from memlab.predict.trace.trace_format import Trace

_VALUE_OF = torch.ops.aten._local_scalar_dense.default
_TO_COPY = torch.ops.aten._to_copy.default
_ALL = torch.ops.aten.all.default
_DEVICE = torch.ops.prim.device.default
_ADD, _ADD_IN_PLACE = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor

_DERIVATIVES_IN_PLACE = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
}
"""Operators of derivatives that write into new zeros: out of place for tensor subclasses such as fake tensors, in place
for ordinary tensors. Source: ``index_backward`` in ``torch/csrc/autograd/FunctionsManual.cpp``,
``value_selecting_reduction_backward`` in ``aten/src/ATen/native/ReduceOps.cpp``."""

_ORDINARY = Kernel()
"""Kernel of an operator without a stand-in: it takes no memory but that of its result."""

_OWN_USES, _OWN_STORAGE_USES = 4, 2
"""Use counts of a gradient that only autograd holds, and of its storage, while it is an argument here. They include the
references of the call itself."""

HOST_MINIMUM_BYTES = MIB
"""Host tensors below this are not recorded: they are many, and their sum is small."""


class Recorder(TorchDispatchMode):
    """Dispatch mode that writes events into ``trace``. Enter it inside ``fake_mode``."""

    def __init__(self, trace: Trace, fake_mode: FakeTensorMode):
        super().__init__()
        self.trace = trace
        self.fake_mode = fake_mode
        self._results = FakeResults(fake_mode)
        self.sites = AllocationSites(trace.sites)
        self.counter = Counter(trace.events, trace.unknown)
        self.allocated_bytes = 0
        self.requests = 0  # device allocations so far, including workspaces: the clock of the replay
        self._events = trace.events
        self._alive: dict[int, weakref.ref] = {}
        self._next_key = 0
        self._pinning = False
        self.kernels: dict[OpOverload, Kernel] = {}  # operators that a stand-in describes
        self.padded = False  # whether samples are padded, so that a mask is not all ones

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's check costs as much as the result

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is _DEVICE:  # the most frequent call by far
            return args[0].device
        kwargs = kwargs or {}
        if func is _VALUE_OF:
            if self.counter.on:
                self.counter.operator(func, args, kwargs, None)
            return self._value(args[0])
        if func is _TO_COPY:
            args = (self._without_value(args[0]), *args[1:])
        if func is _ADD and _accumulates(*args, **kwargs):
            func = _ADD_IN_PLACE
        elif func in _DERIVATIVES_IN_PLACE and _is_derivative():
            func = _DERIVATIVES_IN_PLACE[func]
        kernel = self.kernels.get(func, _ORDINARY)
        if kernel.answer is not None and args[0].device.type == device.NAME:
            return kernel.answer(*args, **kwargs)
        owner = kernel.owner or func
        for sizes in kernel.launches(*args, **kwargs):
            self.counter.kernel(*sizes)
        held = self._take(owner, kernel.temporaries(*args, **kwargs))
        out = self._results.of(func, args, kwargs)
        self._see(out, func)
        self._give_back(held)
        if self.counter.on:
            self.counter.operator(func, args, kwargs, out)
        self._give_back(self._take(owner, kernel.workspaces(*args, **kwargs)))
        self._take(owner, kernel.kept(*args, **kwargs))
        if func is _ALL:
            out._memlab_true = not self.padded
        return out

    # --- events other than operators

    def phase(self, name: str | None) -> None:
        """Begin a phase (``None``: outside any phase) and reset the phase peaks."""
        name = name or ""
        if name not in self.trace.phases:
            self.trace.phases.append(name)
        self.sites.phase = name
        index = self.trace.phases.index(name)
        self._events.append(BeginPhase(index))
        self.counter.phase(index)

    def start_over(self) -> None:
        """Reset the peaks of the run at the first step, after everything has been built."""
        self._events.append(BeginPoint())

    def stop(self) -> None:
        """Stop recording, and copy the counted work into the trace."""
        self._events = []
        self.counter.stop()
        self.trace.work.extend(self.counter.items)
        self.trace.events_before.extend(self.counter.events_before)

    def synchronize(self, event: "device.Event | None" = None) -> None:
        """Record that the host waited for the work launched before ``event`` was recorded, or for all work."""
        self._events.append(Synchronize(self.requests if event is None else event.requests))
        self.counter.host_waits(event)

    def empty_cache(self) -> None:
        self._events.append(EmptyCache())

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        key = getattr(tensor.untyped_storage(), "_memlab_key", None)
        if key is not None:
            self._events.append(RecordStream(key, stream))

    @contextlib.contextmanager
    def pinning(self):
        """Mark host tensors that are created inside the block as page-locked."""
        self._pinning = True
        try:
            yield
        finally:
            self._pinning = False

    # --- storages

    def _see(self, out, func) -> None:
        """Record every new storage in ``out``, a tensor or nested lists and tuples of tensors."""
        if isinstance(out, torch.Tensor):
            self._see_tensor(out, func)
        elif isinstance(out, tuple | list):
            for item in out:
                self._see(item, func)

    def _see_tensor(self, tensor: torch.Tensor, func) -> None:
        storage = tensor.untyped_storage()
        if hasattr(storage, "_memlab_key"):
            return
        nbytes = storage.nbytes()
        if nbytes == 0:
            return
        if tensor.device.type == device.NAME:
            self._see_device(storage, nbytes, tensor, func)
        elif tensor.device.type == "cpu":  # meta tensors have no memory
            if self._pinning:
                storage._memlab_pinned = True
            if nbytes >= HOST_MINIMUM_BYTES:
                self._see_host(storage, nbytes)

    def _see_device(self, storage, nbytes: int, tensor: torch.Tensor, func) -> None:
        key = storage._memlab_key = self._new_key()
        site = self.sites.of(tensor, nbytes, func)
        self._request(key, nbytes, site)
        self.allocated_bytes += nbytes

        def gone(_, key=key, nbytes=nbytes):
            del self._alive[key]
            self.allocated_bytes -= nbytes
            self._events.append(Free(key))

        self._alive[key] = weakref.ref(storage, gone)

    def _see_host(self, storage, nbytes: int) -> None:
        key = storage._memlab_key = self._new_key()
        self._events.append(HostAlloc(key, nbytes, self._pinning))

        def gone(_, key=key):
            del self._alive[key]
            self._events.append(HostFree(key))

        self._alive[key] = weakref.ref(storage, gone)

    def _take(self, owner: object, blocks: Blocks) -> list[int]:
        """Record allocations of a kernel and return their keys, for ``_give_back`` when the kernel is done."""
        keys = []
        for block in blocks:
            nbytes, reduction = (block, None) if isinstance(block, int) else (block.buffer_bytes, block)
            keys.append(self._new_key())
            self._request(keys[-1], nbytes, self.sites.of_scratch(owner, nbytes), reduction)
        return keys

    def _give_back(self, keys: Iterable[int]) -> None:
        self._events.extend(map(Free, keys))

    def _request(self, key: int, nbytes: int, site: int, reduction: Reduction | None = None) -> None:
        self._events.append(Alloc(key, nbytes, device.Stream.current.number, site, reduction))
        self.requests += 1

    def _new_key(self) -> int:
        self._next_key += 1
        return self._next_key

    def _without_value(self, tensor: torch.Tensor) -> FakeTensor:
        """Return the tensor without known values: fake mode would really copy known values to the device."""
        if not isinstance(tensor, FakeTensor):
            return self.fake_mode.from_tensor(tensor)
        tensor.constant = None
        return tensor

    def _value(self, tensor: torch.Tensor) -> bool | int | float:
        """Return the result of ``tensor.item()``: the true value if known, or else the value in a healthy run.

        In a healthy run nothing overflows, every norm is finite and nothing is packed. The result of ``all`` is true
        unless samples are padded.
        """
        if isinstance(tensor, FakeTensor) and tensor.constant is not None:
            return tensor.constant.item()
        if not isinstance(tensor, FakeTensor):
            with torch.utils._python_dispatch._disable_current_modes():
                return tensor.item()
        if tensor.dtype is torch.bool:
            return getattr(tensor, "_memlab_true", False)
        return 1.0 if tensor.dtype.is_floating_point else 0


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
