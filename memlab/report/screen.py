"""The answer of one run, measured or predicted, on one screen: at most 16 lines of 100 columns.

Slots, from the top: the verdict, time and money, a finding or the best change, the phases with the most memory, what
was assumed, the run folder with the next command. Whoever has something to say fills one of these slots; all other
facts are in memlab/report/details_text.py, for ``--all``.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.text import Text

from memlab.core.record import COMMAND_PHASES, FIRST_STEP_PHASES, HOST, OUT_OF_MEMORY, PREDICTED, Record
from memlab.prediction.run_command import LOG
from memlab.report import units
from memlab.report.remarks_text import assumed, remark
from memlab.report.speed_text import speed
from memlab.report.text import ELLIPSIS, fitted
from memlab.report.verdict_text import fullest, verdict
from memlab.runs.folder import RunFolder
from memlab.system.terminal import safe

LINES, WIDTH = 16, 100
"""Size of the screen."""

MOST_PHASES = 7

MOST_ASSUMED = 3
"""Lines of what was assumed, with the empty one before."""

MOST_OF_A_SLOT = 3
"""Lines of one sentence; the rest of a longer one is left to ``--all``."""

NAMES = 21
"""Columns of a phase's name."""


def show_screen(record: Record, folder: RunFolder, out: Console) -> None:
    """Print the answer of a run."""
    good = record.status == "ok" and record.summary.get("verdict", "fits") == "fits"
    for number, line in enumerate(screen(record, folder, out.width)):
        style = "" if number else f"bold {'green' if good else 'red'}"
        out.print(Text(line, style), soft_wrap=True)


def screen(record: Record, folder: RunFolder, width: int = WIDTH) -> list[str]:
    """Return the lines of the answer, none wider than ``width`` or ``WIDTH``, but for the path of the folder."""
    width = min(width, WIDTH)
    top = [line for text in (verdict(record), speed(record), remark(record)) for line in _wrapped(text, width)]
    below = _assumed(record, width)
    last = [_last_line(record, folder, width)]
    phases = min(MOST_PHASES, LINES - len(top) - len(below) - len(last) - 2)
    is_known = record.source != PREDICTED or record.status in (*OUT_OF_MEMORY, "ok")
    table = phase_lines(record, phases) if phases > 0 and is_known else []
    lines = [*top, *([""] if table else []), *table, "", *below, *last]
    if len(lines) > LINES:
        lines.remove("")
    return lines


def phase_lines(record: Record, most: int) -> list[str]:
    """Return a table of the ``most`` phases of the fullest rank with the highest peaks, in their order, in GiB."""
    found = _phases(record)
    if not found:
        return []
    keys = _quantities(record)
    highest = sorted(found, key=lambda name: -(found[name].get(keys[0][1]) or 0))
    shown = [name for name in found if name in highest[:most]]
    places = units.places(found[name].get(key) for name in shown for _, key in keys)
    lines = [f"{'':<{NAMES}}{''.join(f'   {title}' for title, _ in keys)}    GiB"]
    for name in shown:
        cells = (f"{units.gib(found[name].get(key), places):>{len(title) + 3}}" for title, key in keys)
        lines.append(f"{name:<{NAMES}}{''.join(cells)}{'    peak' if name == highest[0] else ''}")
    return lines


def _quantities(record: Record) -> list[tuple[str, str]]:
    if record.ranks[0]["memory_source"] == HOST:
        return [("resident", "host_peak_bytes")]
    return [("allocated", "peak_allocated_bytes"), ("reserved", "peak_reserved_bytes")]


def _phases(record: Record) -> dict[str, dict[str, Any]]:
    """Return phase -> peaks of the fullest rank; the phases of the first step are one."""
    if not record.ranks:
        return {}
    rank = fullest(record)
    known: Mapping[str, Mapping[str, Any]] = rank["phases"] or (rank["attached"] or {}).get("phases") or {}
    found: dict[str, dict[str, Any]] = {}
    for phase in (name for name in COMMAND_PHASES if name in known):
        merged = found.setdefault("first step" if phase in FIRST_STEP_PHASES else phase.replace("_", " "), {})
        for _, key in _quantities(record):
            merged[key] = max(merged.get(key) or 0, known[phase].get(key) or 0)
    return found


def _assumed(record: Record, width: int) -> list[str]:
    """Return the sentences that have room, whole ones where possible."""
    lines: list[str] = []
    for sentence in assumed(record) if record.ranks else ():
        wrapped = _wrapped(sentence, width)
        if len(lines) + len(wrapped) <= MOST_ASSUMED - (not lines):
            lines += wrapped
    return lines


def _last_line(record: Record, folder: RunFolder, width: int) -> str:
    path = shlex.quote(safe(os.path.relpath(folder.path) if folder.path.is_relative_to(Path.cwd()) else folder))
    held = folder.ranks_out_of_memory() or folder.ranks_with_history()
    if (record.source == PREDICTED and record.status in ("ok", *OUT_OF_MEMORY)) or held:
        command, why = f"memlab explain {path}", "where every byte is"
    elif record.source == PREDICTED and record.command:
        command, why = f"{path}/{LOG}", "what the script printed"
    else:
        command, why = f"memlab show --all {path}", "all figures"
    line = f"{path}     {command}   {why}"
    return next((text for text in (line, f"{path}     {command}", command) if len(text) <= width), path)


def _wrapped(text: str, width: int) -> list[str]:
    """Break a sentence into lines of at most ``width`` columns, and cut what is longer than a slot."""
    lines = wrap(fitted(safe(text), width), width, break_long_words=False, break_on_hyphens=False)
    if len(lines) > MOST_OF_A_SLOT:
        lines[MOST_OF_A_SLOT - 1 :] = [f"{lines[MOST_OF_A_SLOT - 1][: width - 2]} {ELLIPSIS}"]
    return lines
