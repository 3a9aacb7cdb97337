"""View of a run: its record without the detail of each rank, small enough to keep 10,000 in memory."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from memlab.analyse.completeness import shortcomings
from memlab.analyse.other_words import other_words
from memlab.core.config import MISSING, to_dict, with_missing
from memlab.core.record import Record
from memlab.core.summary import slowest


@dataclass
class RunView:
    """One finished run. Bytes are integers, times are seconds. Runs may share dictionaries: treat them as read-only."""

    path: str
    run_id: str
    source: str
    status: str
    reason: str | None
    fingerprint: str
    isolation: str
    config: dict[str, Any]  # config.MISSING where a value is not known
    choices: dict[str, str]
    environment: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    incomplete: list[str] = field(default_factory=list)  # what is missing from a run with status ok
    other_words: dict[str, str] = field(default_factory=dict)  # group -> what a command used that conf/ has no word for
    detail: str = "[{}, []]"  # phases and step_seconds as JSON, parsed on first use: a table does not need them

    @property
    def phases(self) -> dict[str, dict[str, dict[str, int]]]:
        """Phase -> quantity -> ``max`` and ``min`` over ranks."""
        return self._parsed_detail[0]

    @property
    def step_seconds(self) -> list[float]:
        """Seconds of each measured step, on its slowest rank."""
        return self._parsed_detail[1]

    @cached_property
    def _parsed_detail(self) -> tuple[dict[str, dict[str, dict[str, int]]], list[float]]:
        return json.loads(self.detail)


def view_of(record: Record, path: str) -> RunView:
    """Make the run of a record that was read from the run folder ``path``."""
    same: tuple[str, ...] = ("run_id", "source", "status", "reason", "fingerprint", "isolation")
    same += ("choices", "environment", "summary", "timing")
    return RunView(
        path=path,
        config=with_missing(to_dict(record.config), record.unknown_config),
        **{key: getattr(record, key) for key in same},
        incomplete=shortcomings(record),
        other_words=other_words(record),
        detail=json.dumps([_phases(record.ranks), slowest(record.ranks, "step_seconds")]),
    )


def is_command(run: RunView) -> bool:
    """Whether a command of the user's own ran, and not memlab's training loop."""
    return value_at(run.config, "training.loop") == "command"


def value_at(config: Mapping[str, Any], dotted: str) -> Any:
    """Return the value of a dotted key; ``None`` if the configuration lacks the key or its value is not known."""
    value: Any = config
    for part in dotted.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return None if value == MISSING else value


def flatten(values: Mapping[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """Flatten nested dictionaries into one with joined keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}{separator}", separator)
        else:
            flat[prefix + key] = value
    return flat


def peak(run: RunView, quantity: str) -> float | None:
    """Return the largest value over ranks of a quantity of the summary, in bytes: it decides whether the run fits."""
    values = run.summary.get(quantity)
    return values.get("max") if isinstance(values, dict) else None


def _phases(ranks: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    values: dict[str, dict[str, list[int]]] = {}
    for rank in ranks:
        for name, phase in rank["phases"].items():
            known = values.setdefault(name, {})
            for key, value in phase.items():
                known.setdefault(key, []).append(value)
    return {
        name: {key: {"max": max(each), "min": min(each)} for key, each in phase.items()}
        for name, phase in values.items()
    }
