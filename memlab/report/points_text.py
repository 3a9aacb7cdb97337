"""Terminal output of the table of a sweep: what varies, memory, step time and price of each point."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from textwrap import shorten

from rich.console import Console

from memlab.analyse.estimators import accelerate_estimate, deepspeed_estimate
from memlab.analyse.identity import COMMAND, SHAPE, axis_value, configurations, named_apart, what_varies
from memlab.analyse.run_view import RunView, free_bytes, is_command, peak
from memlab.core.record import DOES_NOT_LAST, EDGE, FITS, OUT_OF_MEMORY
from memlab.report import units
from memlab.report.short_names import names_by_label
from memlab.report.text import SHOWN, say, show_table

SPARE = ("accelerate's estimate", "DeepSpeed's estimate", "allocated GiB", "tokens/s", "note")
"""Columns that are dropped if the terminal is too narrow, the least used first."""

POINT = ("source", "batch", "tokens")
"""Columns that identify a point within a configuration."""

FOLDER = "folder"
"""Column of points that the others do not tell apart."""

VERDICTS = {EDGE: "at the edge", DOES_NOT_LAST: "does not last"}

ERROR = re.compile(r"\b(?:\w+\.)*(\w*(?:Error|Exception|Exit|Interrupt))\b")
FILE = re.compile(r"[^\s\"']+\.py:\d+")
"""Exception and line of a script in the reason of a run that failed."""

WIDEST = 60
"""Most letters of a reason without an exception."""

PLACE = re.compile(r"(?:rank \d+ )?(in \w+)")
"""Beginning of the reason of a run that ran out of memory, measured or predicted."""


def show_points(runs: Sequence[RunView], out: Console, estimates: bool = False) -> None:
    """Print a row for each point. ``estimates``: also what the estimators of DeepSpeed and accelerate say."""
    axes = [axis for axis in what_varies(runs) if axis != COMMAND]  # too long, and the folder names it
    ordered = sorted(runs, key=lambda run: _place(run, axes))
    title, options = f"{units.counted(len(runs), 'point')}; memory is the fullest rank's", _options(ordered, axes)
    title = "; ".join([title, *sorted({run.list_price for run in runs if run.list_price})])
    if sum(len(axis) + 3 for axis in axes) > out.width // 2:
        labelled = configurations(ordered)
        names, usual = names_by_label({label: members[0] for label, members in labelled.items()})
        name_of = {id(run): names[label] for label, members in labelled.items() for run in members}
        title += f"; unless named: {usual}" if usual else ""
        options = {"configuration": [name_of[id(run)] for run in ordered]}
    quantities = _quantities(ordered, estimates)
    options = named_apart(options, {*quantities, FOLDER})
    columns = options | quantities
    points = list(zip(*(columns[name] for name in (*options, *POINT)), strict=True))
    if any(map(is_command, runs)) or len(set(points)) < len(points):  # the options of a command may not be known
        columns[FOLDER] = [PurePath(run.path).name for run in ordered]
    rows = list(zip(*columns.values(), strict=True))[:SHOWN]
    notes, fixed = len(columns) - list(columns).index("note"), ("step", "$ per million tokens")
    show_table(out, title, list(columns), rows, len(options), notes, common=POINT, spare=SPARE, always=fixed)
    more = f"{len(runs) - SHOWN:,} more rows, and all columns" if len(runs) > SHOWN else "All columns"
    say(f"{more}: memlab table --csv, --parquet or --markdown FILE", out)


def _place(run: RunView, axes: Iterable[str]) -> list[tuple[bool, float, str]]:
    """Return the key by which rows are sorted: numbers by size, then texts."""
    values = [axis_value(run, name) for name in (*axes, *SHAPE[::-1])]
    is_number = [isinstance(value, int | float) for value in values]
    return [(not number, value if number else 0, str(value)) for number, value in zip(is_number, values, strict=True)]


def _options(runs: Sequence[RunView], axes: Iterable[str]) -> dict[str, list[str]]:
    values = {axis: [axis_value(run, axis) for run in runs] for axis in axes}
    return {axis: ["-" if value is None else f"{value}" for value in column] for axis, column in values.items()}


def _quantities(runs: Sequence[RunView], estimates: bool) -> dict[str, list[str]]:
    """Return the columns of the point, its memory, its step time and its price."""
    sizes = {
        "free GiB": [free_bytes(run) for run in runs],
        "reserved GiB": [peak(run, "peak_reserved_bytes") for run in runs],
        "allocated GiB": [peak(run, "peak_allocated_bytes") for run in runs],
    }
    if estimates:
        sizes["DeepSpeed's estimate"] = [deepspeed_estimate(run) for run in runs]
        sizes["accelerate's estimate"] = [accelerate_estimate(run) for run in runs]
    places = units.places(size for column in sizes.values() for size in column)
    in_gib = {name: [units.gib(size, places) for size in column] for name, column in sizes.items()}
    return {
        "source": [run.source for run in runs],
        **dict(zip(POINT[1:], _options(runs, SHAPE[::-1]).values(), strict=True)),
        **{name: in_gib.pop(name) for name in ("free GiB", "reserved GiB")},
        "step": [_step(run) for run in runs],
        "$ per million tokens": [_rate(run, "usd_per_million_tokens") for run in runs],
        "tokens/s": [_rate(run, "tokens_per_second").removesuffix("/s") for run in runs],
        **in_gib,
        "note": [_note(run) for run in runs],
    }


def _rate(run: RunView, key: str) -> str:
    """Write a figure made of the step time without its error, which stands beside the step time."""
    return units.quantity(key, run.summary.get(key), replace(run.basis, error=None))


def _step(run: RunView) -> str:
    """Write the step time, or how a run ended that has none."""
    endings = {"gpu_oom": "out of memory", "host_oom": "out of host memory"}
    step = units.quantity("step_seconds", run.summary.get("step_seconds"), run.basis)
    return step if run.status == "ok" else endings.get(run.status, run.status)


def _note(run: RunView) -> str:
    """Write the verdict of a prediction that does not simply fit, a composed point that a command did not use, where
    memory ran out, and why there is no result."""
    verdict = run.summary.get("verdict", FITS)
    notes = [VERDICTS[verdict]] if verdict in VERDICTS else []
    notes += [f"composed: {key}={value}" for key, value in run.composed.items()]
    if run.status != "ok" and run.reason:
        place = PLACE.match(run.reason) if run.status in OUT_OF_MEMORY else None
        notes.append(place[1].replace("_", " ") if place else _in_short(run.reason))
    return "; ".join([*notes, *run.incomplete])


def _in_short(reason: str) -> str:
    """Write the exception and the file of a reason, or else its first clause; ``memlab show`` has all of it."""
    error, file = ERROR.search(reason), FILE.search(reason)
    parts = [error and error[1], file and PurePath(file[0]).name]
    return ", ".join(filter(None, parts)) if error else shorten(reason.partition(";")[0], WIDEST, placeholder=" ...")
