"""Pandas frames of runs: a row per run, rank, phase or step. Columns have the record's keys; a test freezes them."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from memlab.analyse.estimators import accelerate_estimate, deepspeed_estimate
from memlab.analyse.identity import changed_keys, named_apart
from memlab.analyse.run_view import RunView, flatten, peak, value_at
from memlab.core.config import GROUPS
from memlab.core.errors import RecordError
from memlab.meters.garbage_collector import paused_garbage_collector
from memlab.runs.folder import RunFolder
from memlab.runs.step_rows import read_rows

ALWAYS = (
    "model.path",
    "seq_len.tokens",
    "batch.micro",
    "batch.accumulation",
    "hardware.gpu",
    "hardware.gpus",
    "hardware.memory_gib",
    "hardware.usd_per_gpu_hour",
)
"""Configuration values that always have a column, even if all rows agree: charts and costs need them."""

STEP_QUANTITIES = (
    *("samples", "tokens", "real_tokens", "longest_sample", "padded_length", "micro_batches", "phase"),
    *("peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes", "host_peak_bytes", "alloc_retries", "ooms"),
)
"""Columns of a step that only the commands of users have: their batches differ from step to step."""

RowsOf = Callable[[RunFolder, list[str]], Iterable[dict[str, Any]]]
"""Function that returns the rows of a run folder, and adds problems to a list. Raises :class:`RecordError`."""

ESTIMATORS: dict[str, Callable[[RunView], int | None]] = {
    "estimate_deepspeed": deepspeed_estimate,
    "estimate_accelerate": accelerate_estimate,
}


@paused_garbage_collector()
def points_table(runs: Sequence[RunView]) -> pd.DataFrame:
    """Make a frame with one row per run, in the order given. Sizes are in bytes, times in seconds.

    Columns: ``run_id``, ``path``, ``source``, ``status``, ``reason``, ``isolation``, ``fingerprint``; the option of
    each group under the group's name; :data:`ALWAYS` and every other configuration value that is not the same in all
    rows, dotted; environment values that are not the same in all rows (``environment_torch``); the summary's values,
    quantities of ranks as ``_max``, ``_mean`` and ``_min``; ``timing_*``; the estimators' bytes with their relative
    error against the largest ``peak_reserved_bytes``; ``incomplete``: what is missing from a run with status ok.
    """
    columns: dict[str, list[Any]] = {
        key: [getattr(run, key) for run in runs]
        for key in ("run_id", "path", "source", "status", "reason", "isolation", "fingerprint")
    }
    columns |= {group: [run.choices.get(group) for run in runs] for group in GROUPS}
    environments = [run.environment for run in runs]
    found = _columns_at(environments, changed_keys(environments))
    figures = {"environment_" + key.replace(".", "_"): values for key, values in found.items()}
    figures |= _columns([flatten(run.summary, separator="_") for run in runs])
    figures |= _columns([flatten(run.timing, "timing_") for run in runs])
    figures |= _estimates(runs)
    figures["incomplete"] = ["; ".join(run.incomplete) or None for run in runs]
    configs = [run.config for run in runs]
    values = _columns_at(configs, [*ALWAYS, *(key for key in changed_keys(configs) if key not in ALWAYS)])
    columns |= named_apart(values, {*columns, *figures})
    return pd.DataFrame(columns | figures)


def ranks_table(runs: Sequence[RunView]) -> tuple[pd.DataFrame, list[str]]:
    """Make a frame with one row per rank: ``run_id``, ``path`` and the single values that the rank measured."""
    return long_table(runs, _of_each_rank(_rank_rows))


def phases_table(runs: Sequence[RunView]) -> tuple[pd.DataFrame, list[str]]:
    """Make a frame with one row per rank and phase: ``run_id``, ``path``, ``rank``, ``phase`` and the phase's bytes."""
    return long_table(runs, _of_each_rank(_phase_rows))


def steps_table(runs: Sequence[RunView]) -> tuple[pd.DataFrame, list[str]]:
    """Make a frame with one row per rank and step.

    Columns: ``run_id``, ``path``, ``rank``, ``step``, ``warmup``, ``seconds``, ``loss``; of a command of the user's
    own also those of :data:`STEP_QUANTITIES`.

    ``warmup`` is true for the steps that are not timed. Steps count from 0, those of a command from 1.
    """
    return long_table(runs, _of_each_rank(_step_rows))


def long_table(runs: Sequence[RunView], rows_of: RowsOf) -> tuple[pd.DataFrame, list[str]]:
    """Make a frame with rows of each run. Also returns a line for each problem, such as an unreadable folder."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for run in runs:
        try:
            found = rows_of(RunFolder(run.path), problems)
            rows += [{"run_id": run.run_id, "path": run.path, **row} for row in found]
        except RecordError as error:
            problems.append(str(error))
    return pd.DataFrame(rows), problems


def _of_each_rank(rows_of: Callable[[dict[str, Any], RunFolder], Iterator[dict[str, Any]]]) -> RowsOf:
    return lambda folder, _: (row for rank in folder.read_record().ranks for row in rows_of(rank, folder))


def _rank_rows(rank: dict[str, Any], folder: RunFolder) -> Iterator[dict[str, Any]]:
    yield {key: value for key, value in rank.items() if not isinstance(value, dict | list)}


def _phase_rows(rank: dict[str, Any], folder: RunFolder) -> Iterator[dict[str, Any]]:
    for name, phase in rank.get("phases", {}).items():
        yield {"rank": rank.get("rank"), "phase": name, **phase}


def _step_rows(rank: dict[str, Any], folder: RunFolder) -> Iterator[dict[str, Any]]:
    if rank["attached"] is not None:
        count = len(rank["warmup_seconds"])
        for step, row in enumerate(read_rows(folder.step_rows(rank["rank"])), start=1):
            known = {"rank": rank["rank"], "step": step, "warmup": step <= count, "seconds": row.get("seconds")}
            yield known | {key: row.get(key) for key in STEP_QUANTITIES}
        return
    warmup, losses = rank.get("warmup_seconds", []), rank.get("losses", [])
    for step, seconds in enumerate([*warmup, *rank.get("step_seconds", [])]):
        loss = losses[step] if step < len(losses) else None
        yield {"rank": rank.get("rank"), "step": step, "warmup": step < len(warmup), "seconds": seconds, "loss": loss}


def _columns_at(dictionaries: Sequence[dict[str, Any]], keys: Sequence[str]) -> dict[str, list[Any]]:
    """Return a list of values for each dotted key, lists and dictionaries as JSON text: a cell holds one value.

    Runs share equal parts, so each distinct part is read once.
    """
    columns = {}
    for name, dotted in groupby(keys, key=lambda key: key.partition(".")[0]):
        parts = [values.get(name) for values in dictionaries]
        places = list(map(id, parts))
        distinct = dict(zip(places, parts, strict=True))
        for key in dotted:
            found = {place: value_at({name: part}, key) for place, part in distinct.items()}
            found |= {place: json.dumps(each) for place, each in found.items() if isinstance(each, list | dict)}
            columns[key] = [found[place] for place in places]
    return columns


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: [row.get(key) for row in rows] for key in keys}


def _estimates(runs: Sequence[RunView]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for name, estimate in ESTIMATORS.items():
        values = [estimate(run) for run in runs]
        truths = [peak(run, "peak_reserved_bytes") for run in runs]
        columns[f"{name}_bytes"] = values
        columns[f"{name}_error"] = [v / t - 1 if v and t else None for v, t in zip(values, truths, strict=True)]
    return columns
