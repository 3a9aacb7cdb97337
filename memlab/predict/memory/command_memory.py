"""Memory of a command by phase, by optimizer step and at its peak: a replay of its trace in the form of the meters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memlab.predict.memory.host import host_peaks_of_pieces
from memlab.predict.memory.replay import PieceMemory, Replay
from memlab.predict.outside.parts import OutsidePart, outside_bytes
from memlab.predict.trace.events import BeginPhase
from memlab.predict.trace.trace_format import Piece, Trace


@dataclass(frozen=True)
class CommandMemory:
    """Keys and units as in the file of a measured rank (memlab/attach/__init__.py). ``steps``: step, from 1 -> figures
    of its row; the steps that the replay reached the end of."""

    phases: dict[str, dict[str, Any]]
    peak: dict[str, Any]
    steps: dict[int, dict[str, Any]]


@dataclass(frozen=True)
class _Part:
    phase: str
    piece: Piece
    memory: PieceMemory
    host: int
    outside: int


def command_memory(trace: Trace, replay: Replay, outside: Sequence[OutsidePart]) -> CommandMemory:
    """Fold the pieces that the replay reached. ``outside``: what is used outside the allocator."""
    parts = _parts(trace, replay, outside)
    names = dict.fromkeys(part.phase for part in parts if part.phase)
    highest = max(parts, key=lambda part: part.memory.peak_allocated)
    return CommandMemory(
        phases={name: _phase([part for part in parts if part.phase == name]) for name in names},
        peak={
            "step": highest.piece.step,
            "phase": highest.phase or None,
            "where": highest.piece.where,
            "bytes": highest.memory.peak_allocated,
        },
        steps=_steps(parts),
    )


def out_of_memory(trace: Trace, replay: Replay) -> dict[str, Any]:
    """Return the replay's out-of-memory with the step and the user's line, as the meters name them."""
    piece = trace.pieces[len(replay.pieces) - 1]
    line = trace.sites[trace.events[replay.oom["event"]].site].user_line
    return {**replay.oom, "step": piece.step, "where": line or piece.where}


def _parts(trace: Trace, replay: Replay, outside: Sequence[OutsidePart]) -> list[_Part]:
    begins = [index for index, event in enumerate(trace.events) if isinstance(event, BeginPhase)]
    phases = [trace.phases[event.phase] for event in trace.events if isinstance(event, BeginPhase)]
    at_ends = [outside_bytes(outside, end) for end in [*begins[1:], None]]
    pieces = zip(phases, trace.pieces, replay.pieces, host_peaks_of_pieces(trace), at_ends, strict=False)
    return [_Part(*piece) for piece in pieces]


def _phase(parts: Sequence[_Part]) -> dict[str, Any]:
    highest = max(parts, key=lambda part: part.memory.peak_allocated)
    return {
        "count": sum(part.piece.ends_phase for part in parts),
        "seconds": None,
        "where": highest.piece.where,
        "step": highest.piece.step,
        **_peaks(parts),
        "end_allocated_bytes": parts[-1].memory.end_allocated,
        "used_bytes": max(part.memory.peak_reserved + part.outside for part in parts),
        "host_rss_bytes": None,
    }


def _peaks(parts: Iterable[_Part]) -> dict[str, int]:
    parts = list(parts)
    return {
        "peak_allocated_bytes": max(part.memory.peak_allocated for part in parts),
        "peak_active_bytes": max(part.memory.peak_active for part in parts),
        "peak_reserved_bytes": max(part.memory.peak_reserved for part in parts),
        "host_peak_bytes": max(part.host for part in parts),
    }


def _steps(parts: Sequence[_Part]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    retries = 0
    for number in dict.fromkeys(part.piece.step for part in parts if part.piece.step is not None):
        own = [part for part in parts if part.piece.step == number]
        phases: dict[str, list[int]] = {}
        for part in own:
            if part.phase:
                known = phases.setdefault(part.phase.removeprefix("first_"), [0, 0])
                known[:] = map(max, known, (part.memory.peak_allocated, part.memory.peak_reserved))
        highest = max(own, key=lambda part: part.memory.peak_allocated)
        found[number] = {
            **_peaks(own),
            "alloc_retries": own[-1].memory.retries - retries,
            "ooms": 0,
            "phase": highest.phase.removeprefix("first_") or None,
            "phases": phases,
        }
        retries = own[-1].memory.retries
    return found
