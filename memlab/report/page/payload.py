"""What the page knows, as plain data. Values that recur in many runs are kept once, in a pool."""

import json
import os
from collections.abc import Sequence
from typing import Any

from memlab import __version__
from memlab.analyse.collect import Skipped
from memlab.analyse.diff import deepspeed_json
from memlab.analyse.estimators import deepspeed_estimate
from memlab.analyse.figures import figures_of
from memlab.analyse.identity import (
    MICRO,
    NO_CAUSE,
    REPEATS,
    SHAPE,
    TOKENS,
    changed_keys,
    configurations,
    of_repeats,
    point_of,
    tokens_of,
)
from memlab.analyse.run import Run, peak, value_at
from memlab.config import GROUPS
from memlab.errors import RecordError
from memlab.noise import doubts
from memlab.record import PHASES, RunFolder
from memlab.report import units
from memlab.report.page.axes import all_effects, effect_rows
from memlab.report.page.log import log_tails
from memlab.report.page.summary import fit_rows, held_figure, sections
from memlab.report.palette import styles
from memlab.summary import BYTES

FIGURES = {
    "peak_reserved_bytes": "peak reserved",
    "step_seconds": "step",
    "tokens_per_second": "tokens/s",
    "usd_per_million_tokens": "per million tokens",
}
"""Columns of the table beside what varies, and what they are called; the unit comes behind."""


class Pool:
    """Values by number; equal values have one number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def add(self, value: Any) -> int:
        number = self._numbers.setdefault(json.dumps(value, sort_keys=True), len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def parts(self, values: dict[str, Any]) -> dict[str, int]:
        return {key: self.add(value) for key, value in values.items()}


def payload(runs: Sequence[Run], skipped: Sequence[Skipped], title: str) -> dict[str, Any]:
    """Sizes in bytes, times in seconds; the page formats."""
    named = configurations(runs)
    looks = styles(named)
    place = {id(run): number for number, members in enumerate(named.values()) for run in members}
    runs = sorted(runs, key=lambda run: (place[id(run)], point_of(run)))
    pool = Pool()
    root = os.path.dirname(os.path.commonpath([run.path for run in runs]))
    columns = _columns(runs)
    points = [_point(run, place[id(run)], columns, pool, root) for run in runs]
    effects = all_effects(runs)
    keys = dict.fromkeys(key for point in points for key in point.get("figures", ()))
    return {
        "title": title,
        "version": __version__,
        "sections": [
            {"title": heading, "sentences": sentences}
            for heading, sentences in sections(runs, effects, _told(skipped, root))
        ],
        "fits": fit_rows(runs),
        "effects": effect_rows(effects, held_figure(runs)),
        "configurations": [
            {"label": label, "color": look.color, "dark": look.dark, "dash": look.dash} for label, look in looks.items()
        ],
        "columns": columns,
        "figures": {key: {"name": units.name(key), "unit": unit_of(key)} for key in keys},
        "held": held_figure(runs),
        "phases": PHASES,
        "ignored": {"repeats": REPEATS, "environment": NO_CAUSE},
        "pool": pool.values,
        "points": points,
    }


def unit_of(key: str) -> str:
    """How the page writes a figure."""
    if key.endswith("_bytes"):
        return "bytes"
    if key.startswith("usd"):
        return "usd"
    if "per_second" in key:
        return "rate"
    return "seconds" if "seconds" in key else "number"


def _columns(runs: Sequence[Run]) -> list[dict[str, str]]:
    """What varies in the configuration, then the point, then the main figures that any run has."""
    varied = [group for group in GROUPS if len({run.choices.get(group) for run in runs}) > 1]
    told = {group for group in varied} | {"seq_len", "batch"}
    loose = [
        key
        for key in changed_keys([run.config for run in runs])
        if key not in SHAPE and not of_repeats(key) and key.partition(".")[0] not in told
    ]
    columns = [
        {"key": group, "name": group, "unit": "text"} for group in varied if group not in ("seq_len", "batch", *REPEATS)
    ]
    columns += [{"key": key, "name": key, "unit": "text"} for key in loose]
    if len({run.source for run in runs}) > 1:
        columns.append({"key": "source", "name": "source", "unit": "text"})
    columns += [{"key": MICRO, "name": "batch", "unit": "number"}, {"key": TOKENS, "name": "tokens", "unit": "number"}]
    columns.append({"key": "status", "name": "status", "unit": "text"})
    held = held_figure(runs)
    figures = {held: units.name(held), **FIGURES}
    known = {key for run in runs for key in run.summary}
    columns += [{"key": key, "name": name, "unit": unit_of(key)} for key, name in figures.items() if key in known]
    if any(deepspeed_estimate(run) for run in runs):
        columns.append({"key": "estimate", "name": "DeepSpeed's estimate", "unit": "bytes"})
        columns.append({"key": "estimate_error", "name": "its error", "unit": "share"})
    return columns


def _point(run: Run, configuration: int, columns: Sequence[dict[str, str]], pool: Pool, root: str) -> dict[str, Any]:
    folder = RunFolder(run.path)
    values = {
        "id": run.run_id,
        "path": os.path.relpath(run.path, root),
        "configuration": configuration,
        "source": run.source,
        "status": run.status,
        "reason": run.reason,
        "forward": tokens_of(run),
        "cells": [_cell(run, column["key"]) for column in columns],
        "figures": {key: [_short(each.value), _short(each.noise)] for key, each in figures_of(run).items()},
        "ranks": {
            key: [_short(run.summary[key][end]) for end in ("min", "mean", "max")]
            for key in BYTES
            if isinstance(run.summary.get(key), dict)
        },
        "choices": pool.add(run.choices),
        "config": pool.parts(run.config),
        "environment": pool.add(run.environment),
        "deepspeed": pool.parts(_deepspeed(run)),
        "phases": {
            name: {key: value["max"] for key, value in phase.items()} for name, phase in sorted_phases(run).items()
        },
        "timing": run.timing,
        "doubts": doubts(run.step_seconds),
        "incomplete": run.incomplete,
        "logs": {name: pool.add(text) for name, text in log_tails(folder).items()},
    }
    return {key: value for key, value in values.items() if value not in (None, [], {})}


def sorted_phases(run: Run) -> dict[str, dict[str, dict[str, int]]]:
    """In the order of a run: the known ones first, those of the first step and any other behind them."""
    found = run.phases
    return {name: found[name] for name in (*PHASES, *sorted(found.keys() - set(PHASES))) if name in found}


def _cell(run: Run, key: str) -> Any:
    if key in ("status", "source"):
        return getattr(run, key)
    if key in GROUPS:
        return run.choices.get(key)
    if key in run.summary:
        value = run.summary[key]
        return _short(value["max"] if isinstance(value, dict) else value)
    if key == "estimate":
        return deepspeed_estimate(run)
    if key == "estimate_error":
        estimate, truth = deepspeed_estimate(run), peak(run, "peak_reserved_bytes")
        return _short(estimate / truth - 1) if estimate and truth else None
    value = value_at(run.config, key)
    return value if isinstance(value, str | int | float | None) else json.dumps(value)


def _deepspeed(run: Run) -> dict[str, Any]:
    try:
        return deepspeed_json(run)
    except RecordError:  # half-written, or not JSON: the rest of the run can still be read
        return {}


def _short(value: float | None) -> float | None:
    """Whole bytes, and seven digits of anything else: more is noise, and 500 runs have many numbers."""
    if value is None or isinstance(value, int):
        return value
    return round(value) if abs(value) >= 1e6 else float(f"{value:.7g}")


def _told(skipped: Sequence[Skipped], root: str) -> list[str]:
    return [f"{os.path.relpath(place.path, root)}: {place.reason.replace(root + os.sep, '')}" for place in skipped]
