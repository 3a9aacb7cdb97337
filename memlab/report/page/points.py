"""Data of the page's points: a column for each quantity and key, because most values recur or are missing; and the ends
of their logs."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memlab.analyse.diff import used_deepspeed_json
from memlab.analyse.identity import MICRO, TOKENS, axis_value, causes, what_varies
from memlab.analyse.quantities import Quantity, held_quantity
from memlab.analyse.run_view import RunView, value_at
from memlab.core.basis import follows_from_step, is_rate
from memlab.core.errors import RecordError
from memlab.core.noise import doubts
from memlab.core.record import PHASES, PREDICTED
from memlab.files.regular_file import read_end
from memlab.report import units
from memlab.runs.folder import RunFolder

MAIN = {
    "peak_reserved_bytes": "peak reserved",
    "step_seconds": "step",
    "tokens_per_second": "tokens/s",
    "usd_per_million_tokens": "per million tokens",
}
"""Names of the main columns of the table, without units."""

LOGGED = 500
"""Most runs with the ends of their logs on the page: a log is as large as all other data of a run."""

Quantities = Mapping[int, Mapping[str, Quantity]]
"""Quantities of each run, keyed by ``id(run)``."""


class SharedValues:
    """Numbered values; equal values share a number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def add(self, value: Any) -> int:
        number = self._numbers.setdefault(json.dumps(value, sort_keys=True), len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def column(self, values: Sequence[Any]) -> Any:
        """Add these values and return their numbers, encoded. An object that several runs share is processed once."""
        places = {id(value): value for value in values}
        numbers = {place: None if value is None else self.add(value) for place, value in places.items()}
        return encoded([numbers[id(value)] for value in values])

    def columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a :meth:`column` for each key of these dictionaries."""
        return {key: self.column([row.get(key) for row in rows]) for key in _keys(rows)}


def points_of(runs: Sequence[RunView], places: Mapping[int, int], root: str, shared: SharedValues) -> dict[str, Any]:
    """Make the columns with one value per point. ``places``: number of the configuration, keyed by ``id(run)``."""
    folders, names = zip(*(os.path.split(os.path.relpath(run.path, root)) for run in runs), strict=True)
    return {
        "id": [run.run_id for run in runs],
        "folder": encoded(folders),
        "name": encoded([None if name == run.run_id else name for name, run in zip(names, runs, strict=True)]),
        "configuration": encoded([places[id(run)] for run in runs]),
        "source": encoded([run.source for run in runs]),
        "status": encoded([run.ending for run in runs]),
        "reason": encoded([run.reason for run in runs]),
        "bound": encoded([(run.basis.reason or True) if run.basis.is_bound else None for run in runs]),
        "error": encoded([run.basis.error for run in runs]),
        "doubts": encoded(["; ".join(doubts(run.step_seconds)) or None for run in runs]),
        "incomplete": encoded(["; ".join(run.incomplete) or None for run in runs]),
        "explained": encoded([_has_history(run) for run in runs]),
        "ran_out": encoded([bool(RunFolder(run.path).ranks_out_of_memory()) for run in runs]),
        "choices": shared.column([run.choices for run in runs]),
        "environment": shared.column([run.environment for run in runs]),
        "causes": shared.column([causes(run.environment) for run in runs]),
    }


def quantity_columns(runs: Sequence[RunView], quantities: Quantities) -> dict[str, dict[str, Any]]:
    """Map each quantity to its name, unit and values, and to its noise, lowest and mean rank where known."""
    rows = [quantities[id(run)] for run in runs]
    found = {}
    for key in _keys(rows):
        each = [row.get(key) for row in rows]
        found[key] = {"name": units.name(key), "unit": unit_of(key), "values": _numbers(each, "value")}
        if any(quantity is not None and quantity.noise is not None for quantity in each):
            found[key]["noise"] = _numbers(each, "noise")
        if follows_from_step(key):
            found[key]["bound"] = "at most" if is_rate(key) else "at least"
        ranks = [run.summary.get(key) for run in runs]
        if any(isinstance(rank, dict) and rank["min"] != rank["max"] for rank in ranks):
            for end in ("min", "mean"):
                found[key][end] = encoded([short(rank[end]) if isinstance(rank, dict) else None for rank in ranks])
    return found


def phase_ends(runs: Sequence[RunView]) -> dict[str, Any]:
    """Map each phase to the bytes allocated at its end (largest rank): first known phases in run order, then others."""
    rows = [{name: each.get("end_allocated_bytes", {}).get("max") for name, each in run.phases.items()} for run in runs]
    found = _keys(rows)
    names = [name for name in (*PHASES, *sorted(set(found) - set(PHASES))) if name in found]
    return {name: encoded([row.get(name) for row in rows]) for name in names}


def timing_columns(runs: Sequence[RunView]) -> dict[str, Any]:
    """Map each part of the wall-clock time to its seconds."""
    rows = [{key: value for key, value in run.timing.items() if not key.endswith("_range")} for run in runs]
    return {key: encoded([row.get(key) for row in rows]) for key in _keys(rows)}


def logs_of(runs: Sequence[RunView], shared: SharedValues) -> dict[int, dict[str, int]]:
    """Map points to the ends of their logs, for :data:`LOGGED` runs at most; runs that did not end as ok come first."""
    wanted = sorted(range(len(runs)), key=lambda place: runs[place].status == "ok")[:LOGGED]
    tails = {place: log_tails(RunFolder(runs[place].path)) for place in sorted(wanted)}
    return {place: {name: shared.add(text) for name, text in each.items()} for place, each in tails.items() if each}


def deepspeed_of(run: RunView) -> dict[str, Any]:
    """Return the DeepSpeed JSON of a run; empty if it is unreadable, because the rest of the run is still readable."""
    try:
        return used_deepspeed_json(run)
    except RecordError:
        return {}


def unit_of(key: str) -> str:
    """Return the unit in which the page writes a quantity."""
    if key.endswith("_bytes"):
        return "bytes"
    if key.startswith("usd"):
        return "usd"
    if "per_second" in key:
        return "rate"
    return "seconds" if "seconds" in key else "number"


def table_columns(runs: Sequence[RunView], names: Sequence[str], quantities: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the table's columns: configuration, point, status, main quantities, options that vary, and values that
    differ in groups whose option does not vary.

    Columns of quantities have no values here: :func:`quantity_columns` has them.
    """
    columns = [_column("configuration", "configuration", "text", names)]
    for key, name in ((MICRO, "batch"), (TOKENS, "tokens")):
        columns.append(_column(key, name, "number", [value_at(run.config, key) for run in runs]))
    columns.append(_column("status", "status", "text", [run.ending for run in runs]))
    held = held_quantity(runs)
    main = {held: units.name(held), **MAIN}
    columns += [{"key": key, "name": name, "unit": unit_of(key)} for key, name in main.items() if key in quantities]
    for axis in what_varies(runs):
        columns.append(_column(axis, axis, "text", [_text(axis_value(run, axis)) for run in runs]))
    if len({run.source for run in runs}) > 1:
        columns.append(_column("source", "source", "text", [run.source for run in runs]))
    return columns


def _has_history(run: RunView) -> bool:
    """Whether memlab explain can show where the run's memory went."""
    return run.source == PREDICTED or bool(RunFolder(run.path).ranks_with_history())


def _column(key: str, name: str, unit: str, values: Sequence[Any]) -> dict[str, Any]:
    return {"key": key, "name": name, "unit": unit, "values": encoded(values)}


def _text(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else json.dumps(value)


def _numbers(quantities: Sequence[Quantity | None], part: str) -> Any:
    return encoded([None if quantity is None else short(getattr(quantity, part)) for quantity in quantities])


def _keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def short(value: float | None) -> float | None:
    """Round from a million on to a whole number, else to seven significant digits, to keep the page small."""
    if value is None or isinstance(value, int):
        return value
    return round(value) if abs(value) >= 1e6 else float(f"{value:.7g}")


SHARE = 0.25
"""Distinct values per point above which numbering the values saves nothing."""


def encoded(values: Sequence[Any]) -> Any:
    """Encode texts, numbers, booleans and ``None``.

    Equal values give ``{"all": value}``, few distinct ones ``{"of": values, "at": numbers}``, others the list itself.
    """
    numbers: dict[tuple[type, Any], int] = {}
    at = [numbers.setdefault((type(value), value), len(numbers)) for value in values]
    if len(numbers) == 1:
        return {"all": values[0]}
    if len(numbers) > SHARE * len(values):
        return list(values)
    return {"of": [value for _, value in numbers], "at": at}


LAST_BYTES = 4096
"""Bytes of the end of a log: enough to show how the run ended, and small enough for 500 runs on a page."""

MOST_LOGS = 2


def log_tails(folder: RunFolder) -> dict[str, str]:
    """Read the end of each log: file name -> text, the launcher's log first. Does not follow links."""
    paths = sorted(folder.logs, key=lambda path: (path != folder.launcher_log, path))
    found = {path.name: _tail(path) for path in paths[:MOST_LOGS]}
    return {name: text for name, text in found.items() if text}


def _tail(path: Path) -> str:
    text = read_end(path, LAST_BYTES)
    return "".join(letter for letter in text if letter in "\n\t" or letter.isprintable()).strip()
