"""Events of a trace: memory that the running program requests and frees on its GPU and on the host, phases, waits."""

import os
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from memlab.core.sizes import MIB, OTHER_GPU_BYTES
from memlab.meters.nested_tensors import tensors_in
from memlab.simulator.allocator import CachingAllocator, parse
from memlab.simulator.rank import device
from memlab.simulator.rank.allocation_sites import AllocationSites
from memlab.simulator.rank.kernel import Blocks
from memlab.simulator.rank.unpredictable import SET_DEVICE, UnpredictableError
from memlab.simulator.trace.columns import tuple_of
from memlab.simulator.trace.events import (
    OF_A_BLOCK,
    STREAMS,
    Alloc,
    BeginPhase,
    BeginPoint,
    EmptyCache,
    Event,
    Free,
    GpuOfEvents,
    HostAlloc,
    HostFree,
    RecordStream,
    Synchronize,
    Workspace,
    made,
)
from memlab.simulator.trace.reduction_scratch import Scratch
from memlab.simulator.trace.trace_format import Trace, apply


def block_of(tensor: torch.Tensor) -> int | None:
    """Return the key of the block in which a tensor lies; ``None`` if it lies in none."""
    return getattr(tensor.untyped_storage(), "_memlab_key", None)


class LiveAllocator:
    """The caching allocators of the running rank, one for each of its GPUs, caught up on demand. They have no limit:
    the verdict is made later."""

    def __init__(self, trace: Trace):
        self._events = trace.events
        self._done = 0
        self._gpu_of = GpuOfEvents()
        self.configure("")

    def configure(self, settings: str) -> None:
        """Set options, in the form of PYTORCH_ALLOC_CONF, before the first request."""
        options = parse(settings)
        self._allocators: dict[int, CachingAllocator] = defaultdict(lambda: CachingAllocator(options))
        self._requests: dict[int | None, dict[int, int]] = defaultdict(dict)  # GPU -> key of a block -> bytes

    def now(self, gpu: int | None = 0) -> CachingAllocator:
        """Return the allocator of a GPU, by its number in this process; ``None``: of one that is not used."""
        if gpu is None:
            return CachingAllocator()
        for event in self._events[self._done :]:
            of_event = self._gpu_of(event)
            for allocator in self._allocators.values() if of_event is None else [self._allocators[of_event]]:
                apply(event, allocator)
            if isinstance(event, Alloc):
                self._requests[of_event][event.key] = event.nbytes
            elif isinstance(event, Free):
                self._requests[of_event].pop(event.key, None)
        self._done = len(self._events)
        return self._allocators[gpu]

    def requested(self, gpu: int | None) -> int:
        """Bytes that the rank has requested on a GPU and holds, as of the last :meth:`now`."""
        return sum(self._requests[gpu].values()) if gpu is not None else 0


HOST_MINIMUM_BYTES = MIB
"""Host tensors below this are not recorded: they are many, and their sum is small."""


class _Watched(weakref.ref):
    """Weak reference to a storage, with the key of its block, and the kind of event that frees the block."""

    __slots__ = ("freed", "key")
    key: int
    freed: type[Free | HostFree]


class HostBlock:
    """Memory of the host that is no storage of a tensor: of a numpy array, for example."""


class MemoryEvents:
    """Writes ``events``, a trace's, until :meth:`stop`. ``sites``: numbers the code that requests memory.

    Each block of memory has a key. A storage has the key of its block as its attribute ``_memlab_key``, and on the GPU
    the number of its site as ``_memlab_site`` and the index of its GPU as ``_memlab_gpu``.
    """

    def __init__(self, events: list[Event], sites: AllocationSites):
        self.on_first_request: Callable[[], None] = lambda: None
        self.requests = 0  # device allocations so far, including workspaces: the clock of the replay
        self.calls = 0  # calls of operators so far whose results were seen
        self._requests_at: dict[int, int] = {}  # event -> requests when it was recorded
        self._events, self._sites = events, sites
        self._alive: dict[int, _Watched] = {}
        self._when_gone = self._is_gone
        self._next_key = 0
        self.gpus: dict[int, int] = {}  # indices of those with large tensors -> their numbers in this process
        self._requested: Counter[int] = Counter()  # index of a GPU -> bytes of all tensors that were made there

    @property
    def gpu(self) -> int:
        """Index of the GPU that this process uses most: the one with most of its tensors, or the current one."""
        return max(self._requested, key=self._requested.__getitem__, default=device.current())

    def number_of(self, index: int) -> int | None:
        """Return the number of a GPU in this process; ``None``: its memory is not used."""
        if len(self.gpus) > 1:
            return self.gpus.get(index)
        return 0 if index in (device.current(), self.gpu) else None

    def stop(self) -> None:
        self._events = []

    # --- the run

    def phase(self, index: int) -> None:
        self._events.append(BeginPhase(index))

    def start_over(self) -> None:
        """Reset the peaks of the run at the first step, after everything has been built."""
        self._events.append(BeginPoint())

    def record_event(self, event: int) -> None:
        """Note that ``event`` was put into a stream: a wait for it is a wait for the work launched until now."""
        self._requests_at[event] = self.requests

    def synchronize(self, event: int | None = None) -> None:
        """Record that the host waited for the work launched before ``event`` was recorded, or for all work."""
        self._events.append(Synchronize(self.requests if event is None else self._requests_at[event]))

    def empty_cache(self) -> None:
        self._events.append(EmptyCache())

    # --- storages

    def see(self, out: Any, func: Any = None, pinned: bool = False) -> None:
        """Record every new storage in ``out``, a tensor or nested lists and tuples of tensors that ``func`` made."""
        self.calls += 1
        self._sites.call_begins()
        for tensor in tensors_in(out):
            self._see_tensor(tensor, func, pinned)

    def _see_tensor(self, tensor: torch.Tensor, func: Any, pinned: bool) -> None:
        storage = tensor.untyped_storage()
        if hasattr(storage, "_memlab_key"):
            return
        nbytes = storage.nbytes()
        if nbytes == 0:
            return
        place = device.of(tensor)
        if place.type == device.NAME:
            self._see_device(storage, nbytes, tensor, func)
        elif place.type == "cpu":  # meta tensors have no memory
            if pinned:
                storage._memlab_pinned = True
            if nbytes >= HOST_MINIMUM_BYTES:
                self._see_host(storage, nbytes, pinned)

    def _see_device(self, storage: Any, nbytes: int, tensor: torch.Tensor, func: Any) -> None:
        index = device.of(tensor).index
        if nbytes >= OTHER_GPU_BYTES and index not in self.gpus:
            self._begin_to_use(index)
        self._requested[index] += nbytes
        storage._memlab_site, storage._memlab_gpu = self._sites.of(func, nbytes, tensor), index
        self._hold(storage, nbytes)

    def _begin_to_use(self, index: int) -> None:
        """Number a GPU, at its first large tensor; earlier ones there count as the first GPU's. Refuse a second GPU to
        a rank of several, which has forgotten to choose its own."""
        ranks = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", 1))
        if self.gpus and ranks > 1:
            raise UnpredictableError(
                f"the process has tensors on cuda:{next(iter(self.gpus))} and puts others on cuda:{index}, and a rank "
                f"has one GPU: {SET_DEVICE}"
            )
        self.gpus[index] = len(self.gpus)

    def _stream(self, gpu: int, stream: int | None = None) -> int:
        """Return the number in the events of a stream of a GPU, by default of the current one."""
        return self.gpus.get(gpu, 0) * STREAMS + (device.current_stream(gpu) if stream is None else stream)

    def resized(self, storage: Any) -> bool:
        """Record that a storage on the device was freed and allocated again with its new size. Return whether it is one
        on the device."""
        if not hasattr(storage, "_memlab_site"):
            return False
        if hasattr(storage, "_memlab_key"):
            key = storage._memlab_key
            del storage._memlab_key, self._alive[key]  # with the weak reference goes its callback
            self._events.append(Free(key))
        if storage.nbytes():
            self._hold(storage, storage.nbytes())
        return True

    def replaced(self, storage: Any, other: Any) -> None:
        """Note that ``other`` stands for a storage on the host from now on."""
        if hasattr(storage, "_memlab_key"):
            self._watch(other, storage._memlab_key, HostFree)
            del storage._memlab_key

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        key = getattr(tensor.untyped_storage(), "_memlab_key", None)
        if key is not None:
            self._events.append(RecordStream(key, self._stream(tensor.device.index, stream)))

    def host_block(self, nbytes: int) -> HostBlock:
        """Record memory of the host that lives as long as the object that is returned."""
        block = HostBlock()
        self._see_host(block, nbytes, pinned=False)
        return block

    # --- memory of kernels

    def take(self, owner: object, blocks: Blocks, are_tensors: bool = False) -> list[int]:
        """Record allocations of a kernel and return their keys, for :meth:`give_back` when the kernel is done."""
        keys = []
        self._sites.call_begins()
        for block in blocks:
            nbytes, reduction = (block, None) if isinstance(block, int) else (block.buffer_bytes, block)
            keys.append(self._new_key())
            site = self._sites.of if are_tensors else self._sites.of_workspace
            self._request(keys[-1], nbytes, site(owner, nbytes), device.current(), reduction)
        return keys

    def give_back(self, keys: Iterable[int]) -> None:
        self._events.extend(map(Free, keys))

    def may_take(self, nbytes: int) -> None:
        """Record a workspace that a kernel takes at most, where memory is free."""
        if nbytes:
            self._events.append(Workspace(nbytes, self._stream(device.current())))

    # --- parts of the run that are written again

    def keys_of(self, events: Sequence[Any], found: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Return the keys of the blocks of events that name blocks as those of :class:`AlikeStep`, and the new ones
        among them. ``found``: the storages whose blocks the events free."""
        old = [storage._memlab_key for storage in found]
        for storage, key in zip(found, old, strict=True):
            del storage._memlab_key, self._alive[key]  # with the weak reference goes its callback
        first = self._next_key + 1
        self._next_key += len(made(events))
        new = list(range(first, self._next_key + 1))
        return [*new, *reversed(old)], new

    def repeat(self, events: Sequence[Any], keys: Sequence[int], sites: dict[int, int]) -> None:
        """Write such events. ``sites``: of the new blocks."""
        write = self._events.append
        for event in events:
            kind = type(event)
            if kind is Alloc:
                key, nbytes, stream, _, reduction = event
                event = tuple_of(Alloc, (keys[key], nbytes, stream, sites[key], reduction))
                self.requests += 1
            elif kind in OF_A_BLOCK:
                event = tuple_of(kind, (keys[event.key], *event[1:]))
            write(event)

    def storage_in(self, key: int) -> Any:
        """Return the storage that lies in a block; ``None``: it is gone."""
        found = self._alive.get(key)
        return None if found is None else found()

    def lies_in(self, storage: Any, key: int, site: int, gpu: int) -> None:
        """Note that a storage on the device lies in a block that has been written."""
        storage._memlab_site, storage._memlab_gpu = site, gpu
        self._watch(storage, key, Free)

    # --- blocks

    def _hold(self, storage: Any, nbytes: int) -> None:
        """Record that a storage on the device was allocated, and that it is freed when it is gone."""
        key = self._new_key()
        self._request(key, nbytes, storage._memlab_site, storage._memlab_gpu)
        self._watch(storage, key, Free)

    def _see_host(self, storage: Any, nbytes: int, pinned: bool) -> None:
        key = self._new_key()
        self._events.append(HostAlloc(key, nbytes, pinned))
        self._watch(storage, key, HostFree)

    def _watch(self, storage: Any, key: int, freed: type[Free | HostFree]) -> None:
        """Record when ``storage`` is gone."""
        storage._memlab_key = key
        watched = self._alive[key] = _Watched(storage, self._when_gone)
        watched.key, watched.freed = key, freed

    def _is_gone(self, watched: "_Watched") -> None:
        del self._alive[watched.key]
        self._events.append(watched.freed(watched.key))

    def _request(self, key: int, nbytes: int, site: int, gpu: int, reduction: Scratch | None = None) -> None:
        if not self.requests:
            torch.cuda._lazy_init()  # which compiled code does not call
            self.on_first_request()
        self._events.append(Alloc(key, nbytes, self._stream(gpu), site, reduction))
        self.requests += 1

    def _new_key(self) -> int:
        self._next_key += 1
        return self._next_key
