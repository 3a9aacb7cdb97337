"""Converts a torch snapshot to a Trace: one analysis for measured and predicted runs.

The sites of its requests come from the stacks that torch's memory history recorded.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TypedDict

from memlab.analyse.explain.outside import GpuMarks
from memlab.analyse.explain.snapshot import SEGMENT_ACTIONS, AtEnd, Entry, Frame, Snapshot, Stack
from memlab.core.grouping import grouped
from memlab.core.sizes import MIB
from memlab.core.value_types import Bytes, Count
from memlab.meters.owner import Owner
from memlab.simulator.allocator import Before
from memlab.simulator.trace.events import Alloc, BeginPhase, EmptyCache, Free, RecordStream
from memlab.simulator.trace.memory_kinds import EXPLAINS, KERNEL_SCRATCH, PASSES_ON, SMALL, kind_of, name_sites
from memlab.simulator.trace.trace_format import Piece, Site, Trace

OTHER = "of unknown origin"
"""Kind of a block that no line of code, no backward node and no owner explains."""

_OWN = "/memlab_attach/"
"""Part of the path of memlab's meters in a command (meters/install.py)."""

_CUBLAS_WORKSPACE = frozenset({"at::cuda::getCurrentCUDABlasHandle()", "at::cuda::getCUDABlasLtWorkspace()"})
"""Functions of torch that request the workspace of cuBLAS, which stays. A prediction uses the same name."""

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
        node = next((match[1] for function in _compiled(stack) if (match := _NODE.match(function))), "")
        if caller is None and not node:  # then what passes the call on is the best that is known
            caller = next((frame for frame in callers if not self._as_imported(frame).file.startswith("torch/")), None)
        where, function = node, ""
        if caller is not None:  # the user's file is relative to the command's folder, any other is as it was imported
            file = self._short(caller.file) if self._is_the_users(caller) else self._as_imported(caller).file
            where, function = f"{file}:{caller.line}", caller.function
        site = Site("", _operator(stack), where, function, module, (), user)
        if not where and not any(function.startswith(_SUM_OF_GRADIENTS) for function in _compiled(stack)):
            return replace(site, kind=OTHER)
        return replace(site, kind=kind_of(site, phase))

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


BEFORE = "allocated before the recording"
"""Kind of a block whose allocation the history does not hold."""

NOT_RECORDED = "not recorded: activations, temporaries, buffers of libraries"
"""Kind of a block without an owner, of an out-of-memory without a history."""

SMALL_BYTES = 64 << 10
"""Allocations below this share one site, as in a prediction (simulator/rank/allocation_sites.py)."""

WAITING_STREAM = -1
"""First of the streams that stand for those that freed blocks waited for: the history does not say which they were. The
others follow below."""


class PartEnd(TypedDict):
    """Part of the run before an out-of-memory (meters/out_of_memory.py). ``ended_at``: seconds since the epoch. In
    bytes: ``allocated`` at its end, and its peaks of allocated and reserved memory."""

    phase: str
    step: Count | None
    ended_at: float
    allocated: Bytes
    peak_allocated: Bytes
    peak_reserved: Bytes


@dataclass(frozen=True)
class Marks:
    """What the meters noted beside the history.

    ``pieces``: phase and piece for each part of the run; the label of an entry is "number of its piece|module".
    ``owners``: for the end of a piece, address -> parameter, gradient or optimizer state that held the memory then.
    ``folder``: the command's working folder. ``first``: number of the first of the ``pieces``; those before it are not
    kept. ``import_paths``: folders that the command imported from; empty if they are not known. ``last_parts``: those
    before an out-of-memory without a history, whose only entry is the failed request; ``None`` with a history.
    ``snapshot_sha256``: of the snapshot's file. ``pid``: of the process. ``device``: its index of the GPU that it used
    at the end. ``gpus``: index of a GPU on which it had a context -> what the driver told of it.
    """

    pieces: Sequence[tuple[str, Piece]] = ()
    owners: Mapping[int, Mapping[int, Owner]] = field(default_factory=dict)
    folder: str = ""
    first: int = 0
    import_paths: Sequence[str] = ()
    last_parts: Sequence[PartEnd] | None = None
    snapshot_sha256: str = ""
    pid: str = ""
    device: int = 0
    gpus: Mapping[int, GpuMarks] = field(default_factory=dict)

    def told_of(self, device: int) -> GpuMarks:
        """Return what the driver told of a GPU."""
        return self.gpus.get(device, GpuMarks(gpu=None, before=None, readings=[]))


@dataclass(frozen=True)
class UnservedRequest:
    """The request with which memory ran out, in bytes. ``free_on_device``: by the driver, after the allocator had given
    back all segments that it could. ``seconds``: when, on the clock of the history; ``None`` if none is known."""

    nbytes: int
    free_on_device: int
    site: Site
    seconds: float | None = None


@dataclass(frozen=True)
class MeasuredTrace:
    """The events of a snapshot. ``reserved``: the bytes that the real allocator held after each event; ``segments``:
    size -> the addresses of its segments of this size, in the order in which it got them. Of free blocks of one size
    the allocator takes the one with the lowest address, so a replay needs them. ``before``: what it held when the
    recording began. ``seconds``: when each event happened, from the first recorded one on; ``None`` in a file without
    times. ``failed``: the history ends with it."""

    trace: Trace
    reserved: list[int]
    segments: Mapping[int, Sequence[int]]
    before: Before
    seconds: list[float] | None
    failed: UnservedRequest | None = None


def trace_of(snapshot: Snapshot, rank: int, world_size: int, marks: Marks = Marks()) -> MeasuredTrace:
    """Return the events of a snapshot.

    A block that was allocated before the recording is requested at the beginning, with the kind ``BEFORE``, or
    ``NOT_RECORDED`` without a history, unless its stack or its owner is known. Run the trace through an allocator with
    the snapshot's settings, its ``segments`` and what it held ``before`` to get what is not recorded: the slack inside
    segments.
    """
    return _Builder(snapshot, Trace(rank, world_size), marks).build()


class _Builder:
    def __init__(self, snapshot: Snapshot, trace: Trace, marks: Marks):
        self.snapshot, self.trace, self.marks = snapshot, trace, marks
        self.keys: dict[int, int] = {}  # address of a block in use -> its key
        self.streams = {0: 0}
        self.waited_until: dict[int, int] = {}  # number of a stream below WAITING_STREAM -> requests until it is done
        self.numbers: dict[Site, int] = {}
        self.owned: dict[int, Owner] = {}  # by key; known at the end of a piece
        self.requests = 0  # so far; their numbers are the keys
        self.piece = -1
        self.first_piece = self._piece_of(snapshot.entries[0]) if snapshot.entries else 0  # with an action
        self.site_of = cache(StackSites(marks.folder, marks.import_paths).site)

    def build(self) -> MeasuredTrace:
        places = self._before_the_recording()
        entries = self.snapshot.entries
        requests_until_completed = _requests_until_completed(entries)
        grown = sum(SEGMENT_ACTIONS.get(entry.action, 0) * entry.nbytes for entry in entries)
        reserved = self.snapshot.reserved - grown
        after_each: list[int] = []
        times: list[int] = [entries[0].time_us] * len(self.trace.events) if entries else []
        emptying = False
        if self.marks.first:  # the actions of the first pieces are no longer there
            self.piece = max(self.piece, self.first_piece - 1)
        for index, entry in enumerate(entries):
            self._begin_pieces(entry)
            gives_back = entry.action in ("segment_free", "segment_unmap")
            if not (gives_back and emptying):  # the cache is empty after the last of the segments that it gives back
                after_each += [reserved] * (len(self.trace.events) - len(after_each))
            reserved += SEGMENT_ACTIONS.get(entry.action, 0) * entry.nbytes
            if gives_back and not emptying:
                self.trace.events.append(EmptyCache())
            elif entry.action == "alloc":
                self._alloc(entry, self._module_of(entry))
            elif entry.action == "free_requested":
                self._free(entry.address, requests_until_completed.get(index, 0))
            emptying = gives_back or (emptying and entry.action not in ("alloc", "free_requested", "free_completed"))
            times += [entry.time_us] * (len(self.trace.events) - len(times))
        self._note_owners()
        name_sites(self.trace, self.owned)
        if self.marks.last_parts is not None:
            self._name_by_size()
        after_each += [reserved] * (len(self.trace.events) - len(after_each))
        seconds = [(time - times[0]) / 1e6 for time in times] if any(times) else None
        failed = next((entry for entry in entries if entry.action == "oom"), None)
        there = _from_before(entries, self.snapshot.segments, "segment_alloc", "segment_free")
        before = Before([(each.address, each.nbytes, self._stream(each.stream)) for each in there], places)
        oom = failed and self._failed(failed)
        new = grouped((entry for entry in entries if entry.action == "segment_alloc"), attrgetter("nbytes"))
        segments = {size: [entry.address for entry in found] for size, found in new.items()}
        return MeasuredTrace(self.trace, after_each, segments, before, seconds, oom)

    def _failed(self, entry: Entry) -> UnservedRequest:
        site = self.site_of(entry.stack, self._module_of(entry), self._phase())
        seconds = (entry.time_us - self.snapshot.entries[0].time_us) / 1e6
        return UnservedRequest(entry.nbytes, entry.address, site, seconds)

    def _phase(self) -> str:
        """Return the phase of the running piece."""
        return self.marks.pieces[self.piece][0] if 0 <= self.piece < len(self.marks.pieces) else ""

    def _before_the_recording(self) -> dict[int, int]:
        """Request the blocks that are freed, or still there at the end, without an allocation in the history. Return
        the key of each -> its address.

        The highest address comes first: what a replay then finds free behind a block's place is that block's rounding.
        """
        there = _from_before(self.snapshot.entries, self.snapshot.live, "alloc", "free_requested")
        for block in sorted(there, key=attrgetter("address"), reverse=True):
            has_stack = isinstance(block, AtEnd) and block.stack  # that of an entry is of the free
            self._alloc(block, "", None if has_stack else BEFORE)
        return {key: address for address, key in self.keys.items()}

    def _alloc(self, block: Entry | AtEnd, module: str, kind: str | None = None) -> None:
        key = self.keys[block.address] = self.requests
        kind = kind or (SMALL if block.nbytes < SMALL_BYTES else None)
        site = Site(kind, "", "", "", "", ()) if kind else self.site_of(block.stack, module, self._phase())
        self.requests += 1
        self.trace.events.append(Alloc(key, block.nbytes, self._stream(block.stream), self._number(site)))

    def _stream(self, stream: int) -> int:
        return self.streams.setdefault(stream, len(self.streams))

    def _free(self, address: int, requests: int) -> None:
        key = self.keys.pop(address, None)
        if key is None:  # freed twice: only in a damaged file
            return
        if requests:
            self.trace.events.append(RecordStream(key, self._stream_until(self.requests + requests)))
        self.trace.events.append(Free(key, requests or None))

    def _stream_until(self, reusable: int) -> int:
        """Return the stream that a freed block waits for: one whose blocks become reusable in the order in which they
        were freed. ``reusable``: the number of requests from which on the block can be reused."""
        fitting = (number for number, until in self.waited_until.items() if until <= reusable)
        number = next(fitting, len(self.waited_until))
        self.waited_until[number] = reusable
        return WAITING_STREAM - number

    def _piece_of(self, entry: Entry) -> int:
        """Return the index of the piece in the entry's label; -1 without one, and before the first that is kept."""
        return max(-1, min(piece_and_module(entry.label)[0] - self.marks.first, len(self.marks.pieces) - 1))

    def _module_of(self, entry: Entry) -> str:
        """Return the module in the entry's label; empty if an earlier piece left the label in a thread of autograd."""
        return piece_and_module(entry.label)[1] if self._piece_of(entry) == self.piece else ""

    def _begin_pieces(self, entry: Entry) -> None:
        while self.piece < self._piece_of(entry):
            self._note_owners()
            self.piece += 1
            phase, piece = self.marks.pieces[self.piece]
            self.trace.events.append(BeginPhase(self.trace.phase_number(phase)))
            self.trace.pieces.append(piece)

    def _note_owners(self) -> None:
        if self.piece < self.first_piece:  # the address may have been another block's: torch keeps the last actions
            return
        for address, owner in self.marks.owners.get(self.marks.first + self.piece, {}).items():
            if address in self.keys:
                self.owned[self.keys[address]] = owner  # a later look knows more: models show at their first forward

    def _name_by_size(self) -> None:
        """Give equal blocks without an owner a line of their own, which says how many they are."""
        alike: dict[str, list[tuple[int, Alloc]]] = defaultdict(list)
        for index, event in enumerate(self.trace.events):
            if isinstance(event, Alloc) and self.trace.sites[event.site].kind == BEFORE:
                size = f"of {event.nbytes / MIB:,.2f} MiB" if event.nbytes >= SMALL_BYTES else "below 64 KiB"
                alike[f"{size}{f' (stream {event.stream})' if event.stream else ''}"].append((index, event))
        for size, requests in alike.items():
            where = f"{len(requests):,} block{'s' * (len(requests) > 1)} {size}"
            site = self._number(Site(NOT_RECORDED, "", where, "", "", ()))
            for index, request in requests:
                self.trace.events[index] = request._replace(site=site)

    def _number(self, site: Site) -> int:
        number = self.numbers.setdefault(site, len(self.trace.sites))
        if number == len(self.trace.sites):
            self.trace.sites.append(site)
        return number


@cache
def piece_and_module(label: str) -> tuple[int, str]:
    """Return the number of the piece and the module in the label of an entry; -1 and empty where it has none. A number
    of 19 digits or more was not written by the meters."""
    number, _, module = label.partition("|")
    return (int(number), module) if number.isdecimal() and len(number) < 19 else (-1, "")


def _from_before(entries: Iterable[Entry], at_end: Iterable[AtEnd], allocation: str, free: str) -> list[Entry | AtEnd]:
    """Return what was there when the recording began: where the first action at an address is a ``free``, its entry; of
    what is there ``at_end``, what has no action. ``allocation``, ``free``: names of the actions."""
    first: dict[int, Entry] = {}
    for entry in entries:
        if entry.action in (allocation, free):
            first.setdefault(entry.address, entry)
    freed = [entry for entry in first.values() if entry.action == free]
    return [*freed, *(each for each in at_end if each.address not in first)]


def _requests_until_completed(entries: Sequence[Entry]) -> dict[int, int]:
    """Return for each free_requested entry, by index, the number of requests until the block could be reused."""
    found: dict[int, int] = {}
    waiting: dict[int, tuple[int, int]] = {}  # address -> index of its free_requested, requests until then
    requests = 0
    for index, entry in enumerate(entries):
        if entry.action == "alloc":
            requests += 1
        elif entry.action == "free_requested":
            waiting[entry.address] = (index, requests)
        elif entry.action == "free_completed" and entry.address in waiting:
            started, before = waiting.pop(entry.address)
            found[started] = requests - before
    return found | {index: requests - before + 1 for index, before in waiting.values()}
