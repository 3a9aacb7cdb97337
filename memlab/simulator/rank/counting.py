"""Counts of the work in the last step of a shadow run: FLOPs, bytes, collectives, copies and waits.

FLOPs come from torch's own formulas (torch.utils.flop_counter). Bytes are the sizes of the tensors that an operator
reads and writes. Each tensor counts once, because eager PyTorch runs one kernel per operator.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from memlab.core.record import WORK, left_out
from memlab.meters.nested_tensors import tensors_in
from memlab.simulator.rank import device
from memlab.simulator.rank.libraries import FUNCTIONAL, group_of
from memlab.simulator.rank.tf32 import uses_tf32
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import (
    COLLECTIVES,
    CONVERTED_FROM_HOST,
    CONVERTED_TO_HOST,
    EVERYTHING,
    HALF,
    HOST_MINIMUM_BYTES,
    PAGEABLE,
    PINNED,
    SINGLE,
    TF32,
    BeginWorkPhase,
    Collective,
    Copy,
    HostWaits,
    HostWork,
    Item,
    KernelLaunch,
    Launcher,
    RecordEvent,
    StepWork,
    StreamWaitsForCollective,
    StreamWaitsForEvent,
    renumbered,
)

_aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)
_VALUE_OF = _aten._local_scalar_dense
_TO_COPY = _aten._to_copy.default

_NO_KERNEL = frozenset(
    {
        *(_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided),
        *(_aten._unsafe_view, _aten._reshape_alias, _aten.lift_fresh, _aten.set_, _aten.resize_, _aten.record_stream),
        torch.ops.prim.device,
    }
)
_WRITES_ONLY = frozenset({_aten.copy_, _aten.zero_, _aten.fill_, _aten.normal_, _aten.uniform_})
"""Operators that overwrite a tensor without reading it."""

_READS_A_PART = frozenset(
    {
        *(_aten.embedding, _aten.index, _aten.index_select, _aten.gather),
        *(_aten.nll_loss_forward, _aten.nll_loss_backward, _aten.slice_backward, _aten.select_backward),
    }
)
"""Operators that read only as many bytes of their largest input as they write."""

_OF_ONE_STREAM = frozenset({KernelLaunch, Copy, HostWork, RecordEvent, HostWaits, BeginWorkPhase})
"""Work that a part of the run may consist of if it is to be written again."""

_BY_NAME = {
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
}
"""Prefix of a collective's name, without underscores -> its kind. The first matching prefix decides."""


class _Operator:
    """Properties of an operator that follow from its schema and hold for every call."""

    def __init__(self, func):
        packet = func.overloadpacket
        arguments = func._schema.arguments
        self.name, self.namespace = str(func), func.namespace
        self.has_kernel = packet not in _NO_KERNEL and not func.is_view
        self.is_copy = packet in (_aten.copy_, _aten._to_copy)
        self.is_value = packet is _VALUE_OF
        self.writes_only = packet in _WRITES_ONLY
        self.reads_a_part = packet in _READS_A_PART
        self.flops = flop_registry.get(packet)
        self.causal = next((i for i, argument in enumerate(arguments) if argument.name == "is_causal"), None)
        returns_nothing = not func._schema.returns
        self.written = [
            i for i, a in enumerate(arguments) if returns_nothing and a.alias_info and a.alias_info.is_write
        ]
        self.is_collective = self.namespace in ("c10d", FUNCTIONAL)
        if self.is_collective:
            name = packet.__name__.replace("_", "")
            kind = next((kind for start, kind in _BY_NAME.items() if name.startswith(start)), None)
            self.collective = None if kind is None else COLLECTIVES.index(kind)


class Counter:
    """Work items of one step. Outside that step ``on`` is false and nothing is counted."""

    def __init__(self, trace: Trace, running_module: Callable[[], str]):
        """``trace``: each item stores how many of its events precede the item. Its ``unknown`` receives the reason when
        an operator cannot be counted; then all items are dropped. ``running_module``: names the module whose forward
        runs."""
        self.on = False
        self._unknown = trace.unknown
        self._launchers, self._running_module = trace.launchers, running_module
        self._numbers: dict[Launcher, int] = {}
        self.items: list[Item] = []
        self.events_before: list[int] = []
        self._trace_events = trace.events
        self.operators = self.modules = self.collectives = 0
        self._events: dict[int, int] = {}  # event -> number of its last record in this step
        self._records = 0
        self._known = cache(_Operator)
        self._flops_of: dict[tuple, int] = {}  # of an operator, by the shapes and other arguments of a call

    def start(self) -> None:
        self.on = True

    def stop(self) -> None:
        if self.on:
            self._add(HostWork, ())  # includes the operators and modules after the last kernel
        self.on = False

    def _give_up(self, error: Exception) -> None:
        """Drop all items after an error: a partly counted step would be predicted as too fast."""
        with left_out(WORK, self._unknown):
            raise error
        self.on = False
        self.items.clear()
        self.events_before.clear()

    def module(self) -> None:
        """Count a module whose ``forward`` is entered."""
        if self.on:
            self.modules += 1

    # --- operators

    def operator(self, func, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        """Count one operator call that went through the dispatcher."""
        try:
            self._operator(func, args, kwargs, out)
        except Exception as error:
            self._give_up(error)

    def _operator(self, func, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        known = self._known(func)
        if known.namespace == "prim":
            return
        self.operators += 1
        if not known.has_kernel:
            return
        if known.is_collective:
            return self._collective(known, func, args, out)
        read, written = tensors_in((args, kwargs)), tensors_in(out)
        on_gpu = any(map(device.is_on, (*read, *written)))
        if known.is_value:
            if on_gpu:
                self._add(HostWaits, self._record(device.current_stream()))
        elif known.is_copy and len({tensor.device.type for tensor in (*read, *written)}) == 2:
            self._copy(read[-1], written[0], bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2])))
        elif on_gpu:
            sizes = self._sizes(known, args, read, written)
            half = any(tensor.dtype in _HALF for tensor in read)
            precision = HALF if half else TF32 if known.flops and uses_tf32(func.overloadpacket) else SINGLE
            flops = 0 if known.flops is None else self._flops(known, args, kwargs, out, (*read, *written))
            self._kernel(known.name, precision, flops, sizes)
        else:
            self._host_work(self._sizes(known, args, read, written))

    def library_call(self, function: str, tensors: Iterable[torch.Tensor]) -> None:
        """Count a call of a function of compiled code, which bypasses the dispatcher.

        ``tensors`` names each tensor once if the call reads or writes it, and twice if it does both.
        """
        if not self.on:
            return
        try:
            tensors = list(tensors)
            self.operators += 1
            sizes = map(bytes_in_memory, tensors)
            if any(map(device.is_on, tensors)):
                self.kernel(function, *sizes)
            else:
                self._host_work(tuple(sizes))
        except Exception as error:
            self._give_up(error)

    def kernel(self, function: str, *sizes: int) -> None:
        """Count a kernel that the dispatcher does not see. ``function``: what launches it. ``sizes``: bytes of each
        tensor that it reads or writes."""
        if self.on:
            self._kernel(function, SINGLE, 0, sizes)

    def _kernel(self, operator: str, precision: int, flops: int, sizes: tuple[int, ...]) -> None:
        launcher = Launcher(operator, self._running_module())
        number = self._numbers.get(launcher)
        if number is None:
            number = self._numbers[launcher] = len(self._launchers)
            self._launchers.append(launcher)
        self._add(KernelLaunch, device.current_stream(), precision, flops, sizes, number)

    def _host_work(self, sizes: tuple[int, ...]) -> None:
        if sum(sizes) >= HOST_MINIMUM_BYTES:
            self._add(HostWork, sizes)

    def _copy(self, source: torch.Tensor, destination: torch.Tensor, non_blocking: bool) -> None:
        """Count a copy between host and device, and its dtype conversion.

        A non-blocking copy converts on the GPU. A blocking copy converts on the host, through a temporary host tensor
        that has the dtype of the GPU's tensor (Copy.cu, see shadow/stand_ins/torch_operators.py).
        """
        stream, to_host = device.current_stream(), source.device.type == device.NAME
        if source.dtype is not destination.dtype and not non_blocking:
            way = CONVERTED_TO_HOST if to_host else CONVERTED_FROM_HOST
            self._add(Copy, stream, True, way, bytes_in_memory(source if to_host else destination))
            return
        way = PINNED if device.is_pinned(destination if to_host else source) else PAGEABLE
        # CUDA's API synchronisation behaviour, cudaMemcpyAsync: a copy to pageable memory returns when it is done. A
        # copy from pageable memory returns when the data has been staged; that wait is not modelled.
        waits = not non_blocking or (to_host and way == PAGEABLE)
        copy = (Copy, stream, waits, way, bytes_in_memory(destination if to_host else source))
        converts = source.dtype is not destination.dtype
        if converts and to_host:
            self._conversion(source, destination)
        self._add(*copy)
        if converts and not to_host:
            self._conversion(source, destination)

    def _conversion(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        self._kernel(str(_TO_COPY), SINGLE, 0, (bytes_in_memory(source), bytes_in_memory(destination)))

    def _sizes(self, known: _Operator, args: tuple, read: list, written: list) -> tuple[int, ...]:
        if known.writes_only:
            read = [tensor for tensor in read if all(tensor is not other for other in written)]
        sizes, results = list(map(bytes_in_memory, read)), list(map(bytes_in_memory, written))
        if known.reads_a_part and sizes:
            sizes.remove(max(sizes))
            sizes.append(max(results))
        for position in known.written:
            if position < len(args):
                results += map(bytes_in_memory, tensors_in(args[position]))
        return (*sizes, *results)

    def _flops(self, known: _Operator, args: tuple, kwargs: dict[str, Any], out: Any, tensors: Iterable) -> int:
        """Return the FLOPs of a call. torch's slow formula is evaluated once for equal shapes of ``tensors``, which are
        all tensors of the call, and equal other arguments."""
        others = [arg for arg in (*args, *kwargs.values()) if not isinstance(arg, torch.Tensor)]
        key = (known, str(others), *(tensor.shape for tensor in tensors))
        if key not in self._flops_of:
            shaped = [arg for arg in args if not isinstance(arg, torch.dtype)]  # the formulas know no dtype of a result
            self._flops_of[key] = int(known.flops(*shaped, **kwargs, out_val=out))
        flops = self._flops_of[key]
        at = known.causal
        causal = at is not None and (args[at] if at < len(args) else kwargs.get("is_causal"))
        return flops // 2 if causal else flops  # torch's formulas count the full score matrix, the kernels skip half

    def _collective(self, known: _Operator, func, args: tuple, out: Any) -> None:
        if known.collective is None:
            return
        sides = [sum(map(bytes_in_memory, tensors_in(side))) for side in (*args[:2], out)]
        group: Any = group_of(func, args)
        self._add(Collective, device.current_stream(), known.collective, group.size(), max(sides))
        self.collectives += 1

    # --- waiting

    def wait_for_collective(self, number: int) -> None:
        """Make the current stream wait for collective ``number`` of this step."""
        if self.on and number >= 0:
            self._add(StreamWaitsForCollective, device.current_stream(), number)

    def last_collective(self) -> int:
        return self.collectives - 1 if self.on else -1

    def record(self, event: int, stream: int) -> None:
        if self.on:
            self._events[event] = self._record(stream)

    def _record(self, stream: int) -> int:
        number, self._records = self._records, self._records + 1
        self._add(RecordEvent, stream, number)
        return number

    def stream_waits(self, stream: int, event: int) -> None:
        if self.on and event in self._events:
            self._add(StreamWaitsForEvent, stream, self._events[event])

    def host_waits(self, event: int | None = None) -> None:
        """Make the host wait for an event, or for everything that it has launched (``None``)."""
        if self.on and event is None:
            self._add(HostWaits, EVERYTHING)
        elif self.on and event in self._events:
            self._add(HostWaits, self._events[event])

    def phase(self, index: int) -> None:
        if self.on:
            self._add(BeginWorkPhase, index)

    # --- parts of the run that are written again

    @contextmanager
    def of_part(self) -> Iterator[Callable[[], StepWork | None]]:
        """Count the work of a part of the run. If the counter is off, this leaves nothing behind in it.

        Yields a function that returns the work since the beginning of the block; ``None`` if it depends on other work,
        or cannot be counted.
        """
        was_on, gave_up = self.on, WORK in self._unknown
        before = self.operators, self.modules, self.collectives, self._records, self._events.copy()
        begin, events = len(self.items), len(self._trace_events)
        self.on = not gave_up
        try:
            yield lambda: self._since(begin, events, *before[:2], before[3])
        finally:
            if not was_on:
                self.on = False
                del self.items[begin:], self.events_before[begin:]
                self.operators, self.modules, self.collectives, self._records, self._events = before
                if not gave_up:
                    self._unknown.pop(WORK, None)

    def _since(self, begin: int, events: int, operators: int, modules: int, records: int) -> StepWork | None:
        items: list[Any] = self.items[begin:]
        if items:
            items[0] = items[0]._replace(operators=items[0].operators - operators, modules=items[0].modules - modules)
        if any(type(item) not in _OF_ONE_STREAM or getattr(item, "event", records) < records for item in items):
            return None
        items = [renumbered(item, lambda kind, number: number - records) for item in items]
        return StepWork(items, [before - events for before in self.events_before[begin:]], self.operators, self.modules)

    def repeat(self, work: StepWork) -> None:
        """Count the work of a part whose first event is the next one of the trace."""
        if not self.on:
            return
        if not work.items:
            self.operators, self.modules = self.operators + work.operators, self.modules + work.modules
            return
        first, *rest = work.items
        first = first._replace(operators=first.operators + self.operators, modules=first.modules + self.modules)
        self.items += [renumbered(item, lambda kind, number: number + self._records) for item in (first, *rest)]
        events = len(self._trace_events)
        self.events_before += [events + before for before in work.events_before]
        self._records += sum(isinstance(item, RecordEvent) for item in work.items)
        self.operators, self.modules = work.operators, work.modules

    def _add(self, kind: type[Item], *rest) -> None:
        self.items.append(kind(self.operators, self.modules, *rest))
        self.events_before.append(len(self._trace_events))
        self.operators = self.modules = 0


def bytes_in_memory(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor takes: at most the size of its storage, even if it is expanded."""
    nbytes = tensor.numel() * tensor.element_size()
    return nbytes if tensor.is_contiguous() else min(nbytes, tensor.untyped_storage().nbytes())
