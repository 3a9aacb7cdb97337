"""A run as analysis sees it: the record without the detail of each rank, checked, light enough to keep 10,000 of."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from memlab.analyse.complete import shortcomings
from memlab.config import GROUPS
from memlab.errors import RecordError
from memlab.record import Record
from memlab.summary import slowest


@dataclass
class Run:
    """One finished run. Bytes are integers, times are seconds. Runs may share dictionaries: treat them as read-only."""

    path: str
    run_id: str
    source: str
    status: str
    reason: str | None
    fingerprint: str
    isolation: str
    config: dict[str, Any]
    choices: dict[str, str]
    environment: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    incomplete: list[str] = field(default_factory=list)  # what is missing from a run that calls itself ok
    detail: str = "[{}, []]"  # phases and step_seconds as JSON: a table of 10,000 runs has no use for them

    @property
    def phases(self) -> dict[str, dict[str, dict[str, int]]]:
        """Phase -> figure -> ``max`` and ``min`` over ranks."""
        return json.loads(self.detail)[0]

    @property
    def step_seconds(self) -> list[float]:
        """The slowest rank of each measured step."""
        return json.loads(self.detail)[1]


def run_of(record: Record, path: str) -> Run:
    """Raises :class:`RecordError`, naming the key, for a record whose values are not of the kind that it promises."""
    _check(record, path)
    own = ("run_id", "source", "status", "reason", "fingerprint", "isolation")
    shared = ("config", "choices", "environment", "summary", "timing")
    return Run(
        path=path,
        **{key: getattr(record, key) for key in own + shared},
        incomplete=shortcomings(record),
        detail=json.dumps([_phases(record.ranks), slowest(record.ranks, "step_seconds")]),
    )


def value_at(config: Mapping[str, Any], dotted: str) -> Any:
    """The value of a dotted key; ``None`` where the configuration does not have it."""
    value: Any = config
    for part in dotted.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def flatten(values: Mapping[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """Nested dictionaries as one, their keys joined."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}{separator}", separator)
        else:
            flat[prefix + key] = value
    return flat


def peak(run: Run, figure: str) -> float | None:
    """The largest value over ranks of a figure of the summary, in bytes: what decides whether it fits."""
    values = run.summary.get(figure)
    return values.get("max") if isinstance(values, dict) else None


def _phases(ranks: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    values: dict[str, dict[str, list[int]]] = {}
    for rank in ranks:
        for name, phase in rank.get("phases", {}).items():
            known = values.setdefault(name, {})
            for key, value in phase.items():
                known.setdefault(key, []).append(value)
    return {
        name: {key: {"max": max(each), "min": min(each)} for key, each in phase.items()}
        for name, phase in values.items()
    }


# --- records that others may have written -----------------------------------------------------------------------------

_NUMBERS = frozenset({int, float, type(None)})
"""What JSON has for a figure. Types are compared, not isinstance: this looks at a thousand values a record."""


VERDICT = "verdict"
WORDS = (VERDICT, "step_seconds_basis")
"""What a prediction's summary says in words."""


def _check(record: Record, where: str) -> None:
    texts = ("run_id", "source", "fingerprint", "isolation")
    wrong = [key for key in texts if not _is_name(getattr(record, key))]
    wrong += [] if isinstance(record.reason, str | None) else ["reason"]
    wrong += [f"choices.{key}" for key, value in record.choices.items() if not _is_name(value)]
    wrong += [f"config.{group}" for group in GROUPS if not isinstance(record.config.get(group, {}), dict)]
    wrong += [f"config.{key}" for key in ("batch.micro", "seq_len.tokens") if not _is_count(record.config, key)]
    figures = {key: value for key, value in record.summary.items() if key not in WORDS}
    wrong += [f"summary.{word}" for word in WORDS if not _is_name(record.summary.get(word, ""))]
    wrong += [f"summary.{key}" for key, value in flatten(figures).items() if not _is_finite(value)]
    wrong += [f"summary.{key}" for key, value in record.summary.items() if isinstance(value, dict) and _no_range(value)]
    wrong += [f"timing.{key}" for key, value in record.timing.items() if not _is_figure_or_range(key, value)]
    for index, rank in enumerate(record.ranks):
        wrong += [f"ranks[{index}].{key}" for key in _wrong_in_rank(rank)]
    if wrong:
        raise RecordError(f"{where}: damaged record ({', '.join(wrong[:3])})")


def _wrong_in_rank(rank: Any) -> list[str]:
    if not isinstance(rank, dict):
        return ["not an object"]
    lists = ("step_seconds", "warmup_seconds", "losses")
    wrong = [key for key in lists if not _are_numbers(rank.get(key, []))]
    ranges = [key for key in rank if key.endswith("_range_bytes")]
    wrong += [key for key in ranges if not (rank[key] is None or _are_numbers(rank[key]))]
    numbers = [key for key in rank if key.endswith("_bytes") and key not in ranges]
    wrong += [key for key in numbers if not _is_number(rank[key])]
    phases = rank.get("phases", {})
    if not isinstance(phases, dict):
        return [*wrong, "phases"]
    return wrong + [
        f"phases.{name}"
        for name, phase in phases.items()
        if not isinstance(phase, dict) or not _are_numbers(list(phase.values())) or None in phase.values()
    ]


def _no_range(value: Mapping[str, Any]) -> bool:
    return any(type(value.get(key)) not in (int, float) for key in ("max", "mean", "min"))


def _is_name(value: Any) -> bool:
    """Text of one line without control characters, which a terminal would obey."""
    return isinstance(value, str) and value.isprintable()


def _is_number(value: Any) -> bool:
    return type(value) in _NUMBERS


def _is_finite(value: Any) -> bool:
    return value is None or (_is_number(value) and isfinite(value))


def _is_figure_or_range(key: str, value: Any) -> bool:
    """A range may be open at its end: that of a lower bound is."""
    return _are_numbers(value) and all(map(_is_finite, value)) if key.endswith("_range") else _is_finite(value)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and _NUMBERS.issuperset(map(type, values))


def _is_count(config: Mapping[str, Any], key: str) -> bool:
    value = value_at(config, key)
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
