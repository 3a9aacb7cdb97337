"""Replay of a trace as torch's memory snapshot, the file that pytorch.org/memory_viz draws.

The format is that of ``torch.cuda.memory._snapshot`` (torch/cuda/memory.py), with the kind of memory as the
``category`` by which the page (torch/utils/viz/MemoryViz.js) colours requests.
"""

import pickle
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from memlab.analyse.explain.explained import History
from memlab.files.disk import write_whole
from memlab.predict.allocator import OutOfMemory
from memlab.predict.allocator.blocks import Block
from memlab.predict.allocator.recording import Action
from memlab.predict.trace.apply_events import apply
from memlab.predict.trace.events import Alloc, BeginPhase
from memlab.predict.trace.trace_format import Site

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
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, pickle.dumps(_Writer(history, seconds).snapshot(), protocol=4))


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
        running = ""
        for index, event in enumerate(self.trace.events):
            if isinstance(event, BeginPhase) and index in self.seconds:
                if running:
                    yield self._annotation("END", running, index)
                running = self.trace.phases[event.phase]
                if running:
                    yield self._annotation("START", running, index)
        if running:
            yield self._annotation("END", running, max(self.seconds))

    def _annotation(self, stage: str, phase: str, event: int) -> dict[str, Any]:
        return {"stage": stage, "name": phase, "device": 0, "time_us": round(1e6 * self.seconds[event])}

    def _entries(self) -> Iterator[dict[str, Any]]:
        piece, actions = -1, self.allocator.actions
        for index, event in enumerate(self.trace.events):
            piece += isinstance(event, BeginPhase)
            site = self.trace.sites[event.site] if isinstance(event, Alloc) else None
            is_out_of_memory = False
            try:
                apply(event, self.allocator)
            except OutOfMemory:
                is_out_of_memory = True
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
    if site.where and not _is_line(site.where):  # a backward node: its thread runs no line of the script
        return [*frames, _frame(NOWHERE, 0, f"torch::autograd::{site.where}::apply")]
    if site.where:
        frames.append(_frame_of(site.where, site.function or NOWHERE))
    if site.user_line not in ("", site.where):
        frames.append(_frame_of(site.user_line, NOWHERE))
    return frames or [_frame(NOWHERE, 0, site.kind)]


def _is_line(where: str) -> bool:
    return where.rpartition(":")[2].isdecimal()


def _frame_of(where: str, name: str) -> dict[str, Any]:
    file, _, line = where.rpartition(":")
    return _frame(file, int(line), name)


def _frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}
