"""Exports of a memory history: for chrome://tracing and Perfetto, and for PyTorch's memory_viz."""

import gzip
import json
import pickle
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count, groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from memlab.analyse.explain.explained import Explained, History
from memlab.analyse.explain.explained_run import ExplainedRun
from memlab.analyse.explain.placements import MemoryTimeline, timeline
from memlab.core.basis import BOUND, CALIBRATED
from memlab.core.errors import RecordError
from memlab.core.grouping import grouped
from memlab.core.record import PREDICTED, Record
from memlab.files.disk import write_output
from memlab.prediction.time.calibrate import calibrations_of
from memlab.prediction.time.clocks import COMMUNICATION, LOWER_BOUND, has_clocks, step_seconds
from memlab.prediction.time.step_intervals import (
    Interval,
    StepIntervals,
    events_after_each_item,
    merged,
    step_intervals,
)
from memlab.prediction.time.work_kinds import item_kinds
from memlab.simulator.allocator.blocks import Block
from memlab.simulator.allocator.recording import Action
from memlab.simulator.trace import work_items
from memlab.simulator.trace.events import Alloc, BeginPhase
from memlab.simulator.trace.trace_format import Site, Trace, replayed

NO_CATEGORY = "unknown"
"""The page fails on a file with categories that lacks this one."""

NOWHERE = "??"
"""torch's file of a C++ frame, and its name of a function that is not known."""


def write_memory_viz(path: Path, history: History, seconds: Mapping[int, float]) -> None:
    """Write what the allocator does in a replay of the history, and what it holds at the end.

    Each entry has the label that memlab's recorder gives it: "number of the piece of the run|module". Frames are those
    that the trace knows: the operator, the line that explains the request, the line of the user's script. ``seconds``:
    when each event of the trace happened; entries of other events have no time. Phases are the ``external_annotations``
    between two events with times. Raises :class:`WriteError`, which names ``path``.
    """
    write_output(path, pickle.dumps(_Writer(history, seconds).snapshot(), protocol=4))


class _Writer:
    def __init__(self, history: History, seconds: Mapping[int, float]):
        self.trace, self.settings, self.seconds = history.trace, history.settings, seconds
        self.allocator = history.recorder()
        self.sites: dict[int, Site] = {}  # address -> site of the last request that got it
        self.frames_of = cache(_frames)  # one list for each site: pickle writes it once

    def snapshot(self) -> dict[str, Any]:
        return {
            "device_traces": [list(self._entries())],
            "segments": [self._segment(blocks) for blocks in self.allocator.segments()],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": self.settings},
            "external_annotations": list(self._phases()),
        }

    def _phases(self) -> Iterator[dict[str, Any]]:
        """Yield the beginning and the end of each phase whose times are known, in the form of torch's annotations."""
        begins = [(begin, phase) for begin, phase in self.trace.phase_begins.items() if begin in self.seconds]
        for (begin, phase), (end, _) in pairwise([*begins, (max(self.seconds, default=0), "")]):
            if phase:
                yield self._annotation("START", phase, begin)
                yield self._annotation("END", phase, end)

    def _annotation(self, stage: str, phase: str, event: int) -> dict[str, Any]:
        return {"stage": stage, "name": phase, "device": 0, "time_us": round(1e6 * self.seconds[event])}

    def _entries(self) -> Iterator[dict[str, Any]]:
        piece, actions, replay = -1, self.allocator.actions, replayed(self.trace, self.allocator)
        for index, event in enumerate(self.trace.events):
            piece += isinstance(event, BeginPhase)
            site = self.trace.sites[event.site] if isinstance(event, Alloc) else None
            is_out_of_memory = next(replay, None) is None
            label = f"{piece}|{site.module if site else ''}"
            time = {"time_us": round(1e6 * self.seconds[index])} if index in self.seconds else {}
            yield from ({**self._entry(action, site, label), **time} for action in actions)
            actions.clear()
            if is_out_of_memory:
                return

    def _entry(self, action: Action, site: Site | None, label: str) -> dict[str, Any]:
        """``site``: of the request that the allocator serves. A free has the frames of its request, as in torch."""
        if action.name == "alloc" and site:
            self.sites[action.address] = site
        elif action.name.startswith("free"):
            site = self.sites[action.address]
        return {
            "action": action.name,
            "device_free" if action.name == "oom" else "addr": action.address,
            "size": action.nbytes,
            "stream": action.stream,
            "frames": self.frames_of(site) if site else [],
            "compile_context": "N/A",
            "user_metadata": label,
            "category": site.kind if site and action.name == "alloc" else NO_CATEGORY,
        }

    def _segment(self, blocks: list[Block]) -> dict[str, Any]:
        first = blocks[0]
        return {
            "device": 0,
            "address": first.address,
            "total_size": sum(block.size for block in blocks),
            "allocated_size": sum(block.size for block in blocks if block.allocated),
            "active_size": sum(block.size for block in blocks if not block.is_free),
            "requested_size": sum(self.allocator.requested.get(block.address, 0) for block in blocks),
            "stream": first.pool.stream,
            "segment_type": "small" if first.pool.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": first.base is not None,
            "frames": [],
            "blocks": [self._block(block) for block in blocks],
        }

    def _block(self, block: Block) -> dict[str, Any]:
        values = {"address": block.address, "size": block.size}
        if block.is_free:
            return {**values, "requested_size": 0, "state": "inactive", "frames": []}
        return {
            **values,
            "requested_size": self.allocator.requested[block.address],
            "state": "active_allocated" if block.allocated else "active_pending_free",
            "frames": self.frames_of(self.sites[block.address]),
        }


def _frames(site: Site) -> list[dict[str, Any]]:
    """Return the frames of a site, the innermost first, named as torch names them."""
    operator = site.op.split(".")[1:2] or [site.op]
    frames = [_frame(NOWHERE, 0, f"at::_ops::{name}::call") for name in operator if name]
    is_line = site.where.rpartition(":")[2].isdecimal()
    if site.where and not is_line:  # a backward node: its thread runs no line of the script
        return [*frames, _frame(NOWHERE, 0, f"torch::autograd::{site.where}::apply")]
    if site.where:
        frames.append(_frame_of(site.where, site.function or NOWHERE))
    if site.user_line not in ("", site.where):
        frames.append(_frame_of(site.user_line, NOWHERE))
    return frames or [_frame(NOWHERE, 0, site.kind)]


def _frame_of(where: str, name: str) -> dict[str, Any]:
    file, _, line = where.rpartition(":")
    return _frame(file, int(line), name)


def _frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


STEP, HOST, GPU_LINK, HOST_LINK, STREAMS = 0, 1, 2, 3, 10
"""Numbers of the rows; streams follow from the last one on, in the order of their numbers in the trace."""

Event = dict[str, Any]


def write_chrome_trace(path: Path, run: ExplainedRun) -> None:
    """Write the step of the slowest rank of a prediction, or the memory of the fullest rank of a measured run.

    A name that ends with ``.gz`` gives a compressed file. Raises
    :class:`RecordError` where no clock is known, :class:`WriteError` where the file cannot be written.
    """
    record = run.record
    events, facts = _predicted(run.ranks, record) if record.source == PREDICTED else _measured(run.shown)
    values = {"displayTimeUnit": "ns", "otherData": {"run": record.run_id, **facts}, "traceEvents": events}
    content = json.dumps(values, separators=(",", ":")).encode()
    write_output(path, gzip.compress(content) if path.suffix == ".gz" else content)


def _predicted(ranks: Sequence[Explained], record: Record) -> tuple[list[Event], dict[str, Any]]:
    config, calibration = record.config, calibrations_of(record.config).step
    if not has_clocks(config, [rank.history.trace for rank in ranks]) or not record.steps:
        raise RecordError(f"{record.run_id}: no step time is predicted, so there is no step to draw.")
    costs = LOWER_BOUND if calibration is None else calibration.costs
    rank = max(ranks, key=lambda rank: step_seconds(config, {rank.rank: rank.history.trace}, costs))
    found = step_intervals(config, rank.history.trace.work, costs)
    basis = ": ".join(filter(None, (BOUND if calibration is None else CALIBRATED, record.steps.get("basis_reason"))))
    facts = {"source": "predicted", "rank": rank.rank, "step_seconds": found.seconds, "step_time": basis}
    if record.command:
        facts["step"] = len(rank.history.trace.steps)
    return list(_PredictedStep(rank, found, f"rank {rank.rank}, predicted ({basis})").events()), facts


class _PredictedStep:
    """The events of one step. ``name``: of the process."""

    def __init__(self, rank: Explained, step: StepIntervals, name: str):
        self.rank, self.trace, self.step, self.name = rank, rank.history.trace, step, name
        self.kinds = item_kinds(rank.history.trace)
        self.phases, self.modules = _phases_and_modules(rank.history.trace)

    def events(self) -> Iterator[Event]:
        yield _metadata(self.rank, "process_name", STEP, name=self.name)
        yield from self._row(
            STEP, "step", [_slice(self.rank, STEP, "predicted step", Interval(0, 0.0, self.step.seconds))]
        )
        yield from self._row(HOST, "host: phase, module, operator", self._host())
        between_gpus = self._busy(GPU_LINK, lambda item: isinstance(item, work_items.Collective) and item.ranks > 1)
        yield from self._row(GPU_LINK, "link between GPUs", between_gpus)
        yield from self._row(
            HOST_LINK, "link to the host", self._busy(HOST_LINK, lambda item: isinstance(item, work_items.Copy))
        )
        for row, (stream, intervals) in enumerate(self.step.streams.items(), STREAMS):
            name = "collectives" if stream == COMMUNICATION else f"stream {stream}"
            yield from self._row(row, f"GPU {name}", [self._on_device(row, each) for each in intervals])
        yield from self._launches()
        yield from self._memory()

    def _row(self, row: int, name: str, slices: Iterable[Event]) -> Iterator[Event]:
        """Yield the slices of a row that take a nanosecond at least, with its name if there are any."""
        found = [each for each in slices if each["dur"]]
        if found:
            yield _metadata(self.rank, "thread_name", row, name=name)
            yield _metadata(self.rank, "thread_sort_index", row, sort_index=row)
            yield from found

    def _host(self) -> Iterator[Event]:
        """Yield phases, modules inside phases, and inside these what the host does until it has launched an item."""
        for phase, in_phase in _runs(self.step.host, lambda each: self.phases[each.item]):
            yield _slice(self.rank, HOST, phase or "between phases", _whole(in_phase))
            for module, in_module in _runs(in_phase, lambda each: self.modules[each.item]):
                if module:
                    yield _slice(self.rank, HOST, module, _whole(in_module))
                for each in in_module:
                    item = self.trace.work[each.item]
                    if each.waits:
                        yield _slice(self.rank, HOST, "waits for the GPU", each)
                    else:
                        args = {"operators": item.operators, "modules": item.modules}
                        yield _slice(self.rank, HOST, self._launched(item), each, **args)

    def _launched(self, item: work_items.Item) -> str:
        """Name what the host does until it has launched an item."""
        match item:
            case work_items.KernelLaunch(launcher=launcher):
                return "kernel" if launcher == work_items.NOT_NAMED else self.trace.launchers[launcher].operator
            case work_items.Collective(kind=kind):
                return work_items.COLLECTIVES[kind]
            case work_items.Copy():
                return "copy to or from the host"
            case work_items.HostWork(sizes=sizes) if sizes:
                return "work on host memory"
        return "operators without a kernel"

    def _on_device(self, row: int, interval: Interval) -> Event:
        item = self.trace.work[interval.item]
        args: dict[str, Any] = {"kind": self.kinds[interval.item], "phase": self.phases[interval.item]}
        match item:
            case work_items.KernelLaunch(flops=flops, sizes=sizes):
                args |= {"module": self.modules[interval.item], "flops": flops, "memory_bytes": sum(sizes)}
            case work_items.Collective(ranks=ranks, nbytes=nbytes):
                args |= {"ranks": ranks, "bytes": nbytes}
            case work_items.Copy(nbytes=nbytes):
                args |= {"bytes": nbytes}
        return _slice(self.rank, row, self._launched(item), interval, **args)

    def _launches(self) -> Iterator[Event]:
        """Yield an arrow from the host to each item on the device whose launch lies in the step, too."""
        launches = (each for each in filter(_is_visible, self.step.host) if not each.waits)
        hosts, number = grouped(launches, attrgetter("item")), count()
        for row, intervals in enumerate(self.step.streams.values(), STREAMS):
            for each in filter(_is_visible, intervals):
                before = [host for host in hosts.get(each.item, ()) if host.end <= each.begin]
                if before:
                    arrow = {"name": "launch", "cat": "launch", "id": next(number), "pid": self.rank.rank}
                    yield {**arrow, "ph": "s", "tid": HOST, "ts": _microseconds(before[-1].begin)}
                    yield {**arrow, "ph": "f", "bp": "e", "tid": row, "ts": _microseconds(each.begin)}

    def _busy(self, row: int, uses: Callable[[work_items.Item], bool]) -> list[Event]:
        """Return when at least one item that ``uses`` a link runs."""
        intervals = [each for stream in self.step.streams.values() for each in stream]
        own = [each for each in intervals if uses(self.trace.work[each.item])]
        return [_slice(self.rank, row, "busy", each) for each in merged(own)]

    def _memory(self) -> Iterator[Event]:
        """Yield the memory at each moment of the host: first the most since the last moment, then what is left."""
        memory = timeline(self.rank)
        events_after = events_after_each_item(self.trace)
        for second, done in self.step.moments:
            if events := events_after[done - 1]:
                highest = max(events, key=memory.allocated.__getitem__)
                for event in dict.fromkeys((highest, events[-1])):
                    yield from _counters(self.rank.rank, max(second, 0.0), memory, event)


def _phases_and_modules(trace: Trace) -> tuple[list[str], list[str]]:
    """Return phase and module of each item. What is no kernel belongs to the module of the kernel before.

    The phase is the one of the events around an item: in the work of a command's step, the phase that begins behind the
    step has no name yet.
    """
    begins = trace.phase_begins
    events, names = list(begins), ["", *begins.values()]
    module, phases, modules = "", [], []
    for item, before in zip(trace.work, trace.events_before, strict=True):
        begins_phase = isinstance(item, work_items.BeginWorkPhase)  # the operators before it are of the phase so far
        phases.append(names[bisect_left(events, before - begins_phase)])
        if isinstance(item, work_items.KernelLaunch) and item.launcher != work_items.NOT_NAMED:
            module = trace.launchers[item.launcher].module
        modules.append(module)
        if begins_phase:
            module = ""
    return phases, modules


def _runs(intervals: Iterable[Interval], key: Callable[[Interval], str]) -> Iterator[tuple[str, list[Interval]]]:
    """Yield the intervals in groups of neighbours with the same ``key``."""
    for name, members in groupby(intervals, key):
        yield name, list(members)


def _whole(intervals: Sequence[Interval]) -> Interval:
    return intervals[0]._replace(end=intervals[-1].end)


def _metadata(rank: Explained, what: str, row: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": rank.rank, "tid": row, "args": args}


def _slice(rank: Explained, row: int, name: str, interval: Interval, **args: Any) -> Event:
    """Return a slice of a row, in microseconds.

    A slice ends where the next one begins, on whole nanoseconds. Otherwise Perfetto drops the next one, and
    chrome://tracing draws it below.
    """
    begin, end = _nanoseconds(interval.begin), _nanoseconds(interval.end)
    times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
    return {"ph": "X", "name": name, "pid": rank.rank, "tid": row, **times, "args": args}


def _is_visible(interval: Interval) -> bool:
    return _nanoseconds(interval.end) > _nanoseconds(interval.begin)


def _microseconds(second: float) -> float:
    return _nanoseconds(second) / 1e3


def _nanoseconds(second: float) -> int:
    return round(1e9 * second)


def _counters(rank: int, second: float, memory: MemoryTimeline, event: int) -> Iterator[Event]:
    for name, values in (("allocated", memory.allocated), ("reserved", memory.reserved)):
        args = {"bytes": values[event]}
        yield {"ph": "C", "name": name, "pid": rank, "ts": _microseconds(second), "args": args}


def _measured(rank: Explained) -> tuple[list[Event], dict[str, Any]]:
    """Return the parts of the run and the memory of a recorded history, on the host's clock."""
    memory = timeline(rank)
    if memory.seconds is None:
        raise RecordError(f"rank {rank.rank}: the recorded history has no clock.")
    seconds = memory.seconds
    events = [
        _metadata(rank, "process_name", STEP, name=f"rank {rank.rank}, measured"),
        _metadata(rank, "thread_name", HOST, name="host: parts of the run"),
    ]
    for part in memory.parts:
        interval = Interval(0, seconds[part.begin], seconds[min(part.end, len(seconds) - 1)])
        events.append(_slice(rank, HOST, part.phase or "between phases", interval, step=part.step))
    for event in memory.sampled(0, len(memory.allocated), 20_000):  # intervals, each with four points at most
        events += _counters(rank.rank, seconds[event], memory, event)
    return events, {"source": "measured", "rank": rank.rank}
