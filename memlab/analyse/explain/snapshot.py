"""torch's memory snapshot of one device as typed data: what the allocator did, in order, and what it holds at the end.

The format is that of ``torch.cuda.memory._snapshot`` (torch/cuda/memory.py describes it). Nothing in the file is
executed (files/plain_pickle.py), and nothing in it is believed: each value is checked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from memlab.core.errors import RecordError
from memlab.core.schema import shown
from memlab.files.plain_pickle import read_plain_pickle
from memlab.prediction.memory.ledger import Slack

NO_SLACK = Slack(0, 0, 0, 0)

LARGEST = 1 << 53
"""Addresses, sizes and times in microseconds are below it: browsers hold whole numbers up to here."""

DEEPEST = 1_000
"""Most frames of a stack that are read; torch records a few dozen."""


class Frame(NamedTuple):
    """A frame of a Python or C++ stack. ``function``: for C++, the signature, or ``??``."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]  # the innermost frame first; equal stacks are one object


class Entry(NamedTuple):
    """An action of the allocator: alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map,
    segment_unmap, oom, snapshot. ``label``: the text that ``torch.cuda.memory._set_memory_metadata`` had set.
    ``address``: of an oom, the bytes that were free on the device. ``time_us``: when, in microseconds of the host's
    clock; 0 in a file without times."""

    action: str
    address: int
    nbytes: int
    stream: int
    stack: Stack
    label: str
    time_us: int = 0


class AtEnd(NamedTuple):
    """What is there at the end: a block in use, or waiting for a side stream, with the bytes that were requested; or a
    segment, which the device gave to the allocator as a whole, for the requests of one stream, and which has no stack.
    """

    address: int
    nbytes: int
    stream: int
    stack: Stack = ()


@dataclass(frozen=True)
class Snapshot:
    """``settings``: the allocator's, by torch's names. At the end: ``reserved``, bytes of all segments; ``slack``, of
    these, what no request asked for; ``free``, bytes of each free block; ``segments``,
    those of fixed size. ``device``: its index; ``elsewhere``: the process's other devices -> the most bytes that the
    allocator held there."""

    entries: list[Entry]
    live: list[AtEnd]
    reserved: int
    settings: dict[str, Any]
    slack: Slack = NO_SLACK
    free: tuple[int, ...] = ()
    segments: tuple[AtEnd, ...] = ()
    device: int = 0
    elsewhere: Mapping[int, int] = field(default_factory=dict)


SEGMENT_ACTIONS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Action -> sign of the change in reserved memory."""


def read_snapshot(path: Path) -> Snapshot:
    """Read the device on which a request failed, or else the one on which the allocator held the most.

    Raises :class:`RecordError`, with the reason, for any other file.
    """
    content = read_plain_pickle(path)
    try:
        return _Reader().snapshot(content)
    except (_Unexpected, KeyError) as error:
        raise RecordError(f"{path}: not a memory snapshot of torch ({error})") from None


class _Unexpected(Exception):
    """The file has another structure. The message says where."""


class _Reader:
    def __init__(self) -> None:
        self._stacks: dict[int, Stack] = {}  # by the identity of a list of frames: pickle keeps one list for each stack
        self._same: dict[Stack, Stack] = {}

    def snapshot(self, content: Any) -> Snapshot:
        whole = _of(dict, content, "the file")
        traces = [_of(list, trace, "device_traces") for trace in _of(list, whole["device_traces"], "device_traces")]
        segments = [_of(dict, segment, "segments") for segment in _of(list, whole["segments"], "segments")]
        by_device = [[each for each in segments if each.get("device", 0) == index] for index in range(len(traces) or 1)]
        most = {index: _most_reserved(trace, by_device[index]) for index, trace in enumerate(traces) if trace}
        failed = {index for index in most if any(each.get("action") == "oom" for each in traces[index])}
        device = max(most, key=lambda index: (index in failed, most[index]), default=0)
        own = by_device[device]
        return Snapshot(
            entries=[self._entry(_of(dict, entry, "an entry")) for entry in (traces[device] if traces else [])],
            live=[block for segment in own for block in self._live(segment)],
            reserved=sum(map(_total, own)),
            settings=_of(dict, whole.get("allocator_settings", {}), "allocator_settings"),
            slack=_slack(list(map(_blocks, own))),
            free=tuple(_size(block) for segment in own for block in _blocks(segment) if _is_free(block)),
            segments=tuple(_segment(segment) for segment in own if not segment.get("is_expandable", False)),
            device=device,
            elsewhere={index: nbytes for index, nbytes in most.items() if index != device},
        )

    def _entry(self, entry: Mapping[str, Any]) -> Entry:
        return Entry(
            _of(str, entry["action"], "action"),
            _whole(entry.get("addr", entry.get("device_free", 0)), "addr"),
            _whole(entry.get("size", 0), "size"),
            _of(int, entry.get("stream", 0), "stream"),
            self._stack(entry.get("frames", [])),
            _of(str, entry.get("user_metadata", ""), "user_metadata"),
            _whole(entry.get("time_us", 0), "time_us"),
        )

    def _live(self, segment: Mapping[str, Any]) -> Iterator[AtEnd]:
        stream = _of(int, segment.get("stream", 0), "stream")
        for block in _blocks(segment):
            if not _is_free(block):
                stack = self._stack(block.get("frames", []))
                yield AtEnd(_whole(block["address"], "address"), _requested(block), stream, stack)

    def _stack(self, frames: Any) -> Stack:
        known = self._stacks.get(id(frames))
        if known is None:
            known = tuple(self._frames(_of(list, frames, "frames")))
            known = self._stacks[id(frames)] = self._same.setdefault(known, known)
        return known

    def _frames(self, frames: Sequence[Any]) -> Iterator[Frame]:
        for frame in frames[:DEEPEST]:
            fields = _of(dict, frame, "a frame")
            file, line = _of(str, fields["filename"], "filename"), _of(int, fields["line"], "line")
            yield Frame(file, line, _of(str, fields["name"], "name"))


def _most_reserved(trace: Sequence[Any], segments: Sequence[Mapping[str, Any]]) -> int:
    """Return the most bytes that the allocator held on a device. ``segments``: those at the end of the trace."""
    most = held = sum(map(_total, segments))
    for entry in reversed([_of(dict, entry, "an entry") for entry in trace]):
        sign = SEGMENT_ACTIONS.get(entry["action"], 0)
        if sign:
            held -= sign * _whole(entry.get("size", 0), "size")
            most = max(most, held)
    return most


def _slack(segments: Sequence[Sequence[Mapping[str, Any]]]) -> Slack:
    """Return what no request asked for, in segments with these blocks."""
    free = [sum(_size(block) for block in blocks if _is_free(block)) for blocks in segments]
    releasable = sum(nbytes for nbytes, blocks in zip(free, segments, strict=True) if all(map(_is_free, blocks)))
    active = [block for blocks in segments for block in blocks if not _is_free(block)]
    allocated = [block for block in active if block["state"] == "active_allocated"]
    return Slack(
        rounding=sum(_size(block) - _requested(block) for block in allocated),
        waiting=sum(map(_size, active)) - sum(map(_size, allocated)),
        holes=sum(free) - releasable,
        releasable=releasable,
    )


def _total(segment: Mapping[str, Any]) -> int:
    return _whole(segment["total_size"], "total_size")


def _segment(segment: Mapping[str, Any]) -> AtEnd:
    stream = _of(int, segment.get("stream", 0), "stream")
    return AtEnd(_whole(segment["address"], "address"), _total(segment), stream)


def _blocks(segment: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_of(dict, block, "a block") for block in _of(list, segment["blocks"], "blocks")]


def _is_free(block: Mapping[str, Any]) -> bool:
    return block["state"] == "inactive"


def _size(block: Mapping[str, Any]) -> int:
    return _whole(block["size"], "size")


def _requested(block: Mapping[str, Any]) -> int:
    return _whole(block.get("requested_size", block["size"]), "requested_size")


def _whole(value: Any, where: str) -> int:
    """Return an address, a number of bytes or a time."""
    if not 0 <= _of(int, value, where) < LARGEST:
        raise _Unexpected(f"{where}: {shown(value)} is not possible")
    return value


def _of(kind: type, value: Any, where: str) -> Any:
    if type(value) is not kind:
        raise _Unexpected(f"{where}: {type(value).__name__} instead of {kind.__name__}")
    return value
