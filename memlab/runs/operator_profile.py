"""The operators of profiled steps: the Chrome trace of torch's profiler, summed up, as rankN.operators.json."""

import gzip
import json
import re
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple, TextIO

from memlab.core.errors import RecordError
from memlab.core.grouping import grouped
from memlab.core.schema import SchemaError, check_of
from memlab.core.sizes import GIB, MIB
from memlab.files.json_file import read_json, write_json
from memlab.files.regular_file import open_regular
from memlab.runs.folder import RunFolder

PROFILED_RANK = 0

PIECE = "memlab piece: "
"""Prefix of the mark at the end of each part of a run (memlab.meters.profiler)."""

STEP = "ProfilerStep#"
"""Prefix of the profiler's own mark for a step."""

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of the trace for what runs on a GPU."""

LAUNCHES = ("cuda_runtime", "cuda_driver")
"""Categories for calls of the driver on the host. A call and what it launches have the same ``correlation``."""

ALLOCATES = ("aten::empty", "aten::new_empty", "aten::resize_")
"""Prefixes of operators that only allocate for their caller."""

MEMORY = "[memory]"
"""Name of the entries for requests and frees."""

CUDA = 1
"""``Device Type`` of memory on a GPU (c10/core/DeviceType.h)."""


@dataclass(frozen=True)
class OperatorTime:
    """An operator in one phase, as the mean over the profiled steps.

    With an empty ``kernel``: the calls of the operator; ``seconds``: the host's, without operators that it calls;
    ``allocated_bytes``: requested from the device by it alone. With a ``kernel``: the launches by the operator;
    ``seconds``: the device's. An empty ``operator`` is code outside all operators.
    """

    phase: str
    operator: str
    kernel: str
    calls: float
    seconds: float
    allocated_bytes: float


@dataclass(frozen=True)
class OperatorProfile:
    """``steps``: number of profiled steps. ``step_seconds``: of each, while it was profiled. ``busy_seconds``: per
    step, in which the device worked on anything."""

    steps: int
    step_seconds: list[float]
    busy_seconds: float
    operators: list[OperatorTime]

    @property
    def on_device(self) -> list[OperatorTime]:
        return [each for each in self.operators if each.kernel]


def keep_operators(folder: RunFolder, rank: int) -> None:
    """Sum up the profile that a rank left in a run folder, if there is one, and write the operators beside it.

    Raises :class:`RecordError` for a file that is no profile, :class:`WriteError`.
    """
    if folder.profile_file(rank).exists():
        write_operators(folder.operators_file(rank), summed_up(folder.profile_file(rank)))


def read_operators(path: Path) -> OperatorProfile:
    """Read what :func:`write_operators` wrote. Raises :class:`RecordError` for anything else."""
    values = read_json(path)
    try:
        check_of(OperatorProfile)(values)
        return OperatorProfile(**{**values, "operators": [OperatorTime(**row) for row in values["operators"]]})
    except (TypeError, SchemaError) as error:
        raise RecordError(f"{path}: not the operators of a profile ({error})") from None


def write_operators(path: Path, profile: OperatorProfile) -> None:
    """Write a profile. Raises :class:`WriteError`, which names ``path``."""
    write_json(path, asdict(profile))


_DAMAGES = (
    *(OSError, EOFError, zlib.error),
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
)
"""What a file of another form raises, while it is unpacked and read."""


def summed_up(path: Path) -> OperatorProfile:
    """Sum up the gzipped Chrome trace of torch's profiler. Raises :class:`RecordError` for any other file."""
    try:
        return _summed_up([event for values in _values(path) if (event := _event(values))])
    except _DAMAGES as error:
        raise RecordError(f"{path}: not a Chrome trace of torch's profiler ({error})") from None


def _values(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of ``traceEvents`` one by one: a trace as a whole takes several times its bytes in memory."""
    decoder, text, at = json.JSONDecoder(), "", 0
    with open_regular(path) as packed, gzip.open(packed, "rt", encoding="utf-8") as file:
        while (begin := _EVENTS.search(text)) is None:
            text = _more(file, text)
        at = begin.end()
        while True:
            between = _BETWEEN.match(text, at)
            assert between is not None  # also where nothing is between two entries
            at = between.end()
            try:
                if text[at] == "]":
                    return
                values, at = decoder.raw_decode(text, at)
            except (ValueError, IndexError):  # the rest of this entry is not read yet
                text, at = _more(file, text[at:]), 0
            else:
                yield values


_EVENTS = re.compile(r'"traceEvents": *\[')
_BETWEEN = re.compile(r"[\s,]*")


LARGEST = 4 * GIB
"""Bytes of the largest trace, unpacked: torch writes about 370 for an event."""
LONGEST = 16 * MIB
"""Characters of the longest entry, and of what is before the first entry."""


def _more(file: TextIO, rest: str) -> str:
    """Return ``rest`` and the next part of a file. Raises :class:`ValueError` at its end, and beyond the limits."""
    if len(rest) > LONGEST:
        raise ValueError(f"an entry is too long; the limit is {LONGEST:,} characters")
    if file.buffer.tell() > LARGEST:
        raise ValueError(f"too large; the limit is {LARGEST:,} bytes, unpacked")
    if more := file.read(MIB):
        return rest + more
    raise ValueError("it ends early")


class _Event(NamedTuple):
    """An entry of a trace. ``begin``, ``length``: in microseconds. ``correlation``: of a call of the driver and of what
    it launches. ``nbytes``: requested from the device; of :data:`MEMORY` alone."""

    category: str
    name: str
    begin: float
    length: float
    thread: tuple[Any, Any]
    correlation: int | None
    nbytes: int

    @property
    def end(self) -> float:
        return self.begin + self.length

    @property
    def is_mark(self) -> bool:
        """Whether it is the profiler's or memlab's mark. Another ``user_annotation`` is a span that torch or a script
        marks, as an optimizer's step: an operator for those inside."""
        return self.category == "user_annotation" and self.name.startswith((PIECE, STEP))


def _event(values: Mapping[str, Any]) -> _Event | None:
    """Return the entry as an event; ``None`` for entries that nothing here needs."""
    category, name, args = values.get("cat", ""), values["name"], values.get("args", {})
    nbytes = 0
    if name == MEMORY:
        category = MEMORY
        nbytes = args["Bytes"] if args["Device Type"] == CUDA else 0
        if nbytes <= 0:
            return None
    elif category not in _NEEDED:
        return None
    thread = values["pid"], values["tid"]
    return _Event(
        *(intern(category), intern(name), values["ts"], values.get("dur", 0), thread, args.get("correlation"), nbytes)
    )


_NEEDED = frozenset({"cpu_op", "user_annotation", *LAUNCHES, *ON_DEVICE})


def _summed_up(events: Sequence[_Event]) -> OperatorProfile:
    steps = [event for event in events if event.is_mark and event.name.startswith(STEP)]
    count = max(len(steps), 1)
    phase_at = _phases(events)
    launched_by: dict[int | None, tuple[float, str]] = {}  # correlation -> begin and operator of a call of the driver
    rows: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0])
    on_host = (event for event in events if event.category not in ON_DEVICE and not event.is_mark)
    for thread in grouped(on_host, attrgetter("thread")).values():
        for at, operator, seconds, nbytes in _calls(thread, launched_by):
            _add(rows[phase_at(at), operator, ""], seconds, nbytes)
    on_device = [event for event in events if event.category in ON_DEVICE]
    for event in on_device:
        at, operator = launched_by.get(event.correlation, (event.begin, ""))
        _add(rows[phase_at(at), operator, event.name], event.length / 1e6, 0)
    found = [
        OperatorTime(*names, calls / count, seconds / count, nbytes / count)
        for names, (calls, seconds, nbytes) in rows.items()
    ]
    found.sort(key=lambda each: (not each.kernel, -each.seconds))
    return OperatorProfile(len(steps), [event.length / 1e6 for event in steps], _busy(on_device) / count, found)


def _add(row: list[float], seconds: float, nbytes: int) -> None:
    row[0] += 1
    row[1] += seconds
    row[2] += nbytes


def _phases(events: Iterable[_Event]) -> Callable[[float], str]:
    """Return the function from a time of the trace to the phase then."""
    marks = sorted((event.begin, event.name) for event in events if event.is_mark and event.name.startswith(PIECE))
    times, names = [time for time, _ in marks], [name.removeprefix(PIECE) for _, name in marks]
    names.append("")  # of what comes after the last mark
    return lambda time: names[bisect_left(times, time)]


_Call = tuple[float, str, float, int]  # begin in microseconds, operator, seconds of its own, bytes


class _Open:
    """An operator that runs, at a moment of the sweep over a thread."""

    def __init__(self, event: _Event):
        self.event = event
        self.inside, self.nbytes = 0.0, 0  # microseconds in the operators that it calls; bytes requested by it alone

    @property
    def call(self) -> _Call:
        return self.event.begin, self.event.name, max(self.event.length - self.inside, 0.0) / 1e6, self.nbytes


def _calls(events: Iterable[_Event], launched_by: dict[int | None, tuple[float, str]]) -> Iterator[_Call]:
    """Yield the calls of one thread, by a sweep over its events in the order of time. ``launched_by``: receives the
    calls of the driver."""
    stack: list[_Open] = []
    for event in sorted(events, key=lambda event: (event.begin, -event.length)):
        while stack and stack[-1].event.end <= event.begin:
            yield stack.pop().call
        if event.category in LAUNCHES:
            launched_by[event.correlation] = event.begin, stack[-1].event.name if stack else ""
        elif event.category == MEMORY:
            # of the innermost operator that does more than to allocate
            if needing := next((each for each in reversed(stack) if not each.event.name.startswith(ALLOCATES)), None):
                needing.nbytes += event.nbytes
        else:
            if stack:
                stack[-1].inside += event.length
            stack.append(_Open(event))
    yield from (each.call for each in reversed(stack))


def _busy(on_device: Iterable[_Event]) -> float:
    """Return the seconds in which at least one of the events runs."""
    busy, until = 0.0, float("-inf")
    for event in sorted(on_device, key=lambda event: event.begin):
        busy += max(event.end - max(event.begin, until), 0.0)
        until = max(until, event.end)
    return busy / 1e6
