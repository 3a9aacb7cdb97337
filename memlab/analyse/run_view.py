"""View of a run: its record without the detail of each rank, small enough to keep 10,000 in memory."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import isfinite
from typing import Any

from memlab.analyse.command_facts import extent, other_words
from memlab.core.basis import Basis, basis_of, follows_from_step
from memlab.core.config import MISSING
from memlab.core.config_values import to_dict, with_missing, with_own_names
from memlab.core.plan import SHAPE
from memlab.core.record import DOES_NOT_LAST, OUT_OF_MEMORY, Record
from memlab.core.sizes import GIB
from memlab.core.summary import slowest
from memlab.files.conf_files import list_price

GROWS = "its memory grows with each step"

LACKS_MEMORY = (*OUT_OF_MEMORY, DOES_NOT_LAST)
"""Values of ``RunView.ending`` of a run whose memory does not suffice."""


def shortcomings(record: Record) -> list[str]:
    """List what is missing from a run, a phrase each; empty for a complete run, and for any run that did not end as ok.

    Ranks, steps and losses are checked for measured runs only: a prediction needs one rank and takes no steps.
    """
    if record.status != "ok":
        return []
    if record.source != "measured":
        return [] if record.summary else ["no values"]
    return [*_ranks(record), *_steps(record), *_losses(record)]


def _ranks(record: Record) -> Iterator[str]:
    planned = record.config.hardware.gpus
    present = [rank["rank"] for rank in record.ranks]
    if missing := sorted(set(range(planned)) - set(present)):
        yield f"no values of rank {', '.join(map(str, missing))} (of {planned})"
    if twice := sorted({str(rank) for rank in present if present.count(rank) > 1}):
        yield f"rank {', '.join(twice)} is there more than once"
    if silent := [str(rank.get("rank")) for rank in record.ranks if rank.get("status", "ok") != "ok"]:
        yield f"rank {', '.join(silent)} did not end as ok"


def _steps(record: Record) -> list[str]:
    planned = record.config.measure.steps
    if record.steps.get("averaged_over") == planned:  # an import may have only the mean
        return []
    if record.ranks and all(map(_has_no_times, record.ranks)):
        return ["no step has a time, because each was recorded (--explain) or profiled"]
    short = [rank for rank in record.ranks if len(rank.get("step_seconds") or []) != planned]
    counts = ", ".join(f"rank {rank.get('rank')}: {len(rank.get('step_seconds') or [])}" for rank in short[:3])
    return [f"{planned} steps were planned, measured were {counts}"] if short else []


def _has_no_times(rank: Mapping[str, Any]) -> bool:
    """Whether the meters slowed all steps of a command's rank."""
    attached = rank.get("attached") or {}
    slowed = attached.get("recorded_steps", 0) + len(attached.get("profiled_steps", []))
    return 0 < attached.get("steps", 0) <= slowed


def _losses(record: Record) -> Iterator[str]:
    """Name the first loss of each rank that is not a finite number. Later such losses follow from the first."""
    for rank in record.ranks:
        losses = enumerate(rank.get("losses") or [])
        wrong = (f"step {step} is {loss}" for step, loss in losses if loss is None or not isfinite(loss))
        yield from (f"rank {rank.get('rank')}: the loss of {first}" for first in islice(wrong, 1))


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
    steps: dict[str, Any] = field(default_factory=dict)  # the part of Record.steps that says how its times are known
    training_steps: int | None = None  # of a command's whole run, or of an epoch; None: not known
    timing: dict[str, float] = field(default_factory=dict)
    incomplete: list[str] = field(default_factory=list)  # what is missing from a run with status ok
    other_words: dict[str, str] = field(default_factory=dict)  # group -> what a command used that conf/ has no word for
    list_price: str | None = None  # source of the list price, if the record has no price
    composed: dict[str, int] = field(default_factory=dict)  # key of the point -> value that a command did not use
    detail: str = "[{}, []]"  # phases and step_seconds as JSON, parsed on first use: a table does not need them

    @property
    def phases(self) -> dict[str, dict[str, dict[str, int]]]:
        """Phase -> quantity -> ``max`` and ``min`` over ranks."""
        return self._parsed_detail[0]

    @property
    def step_seconds(self) -> list[float]:
        """Seconds of each measured step, on its slowest rank."""
        return self._parsed_detail[1]

    @property
    def ending(self) -> str:
        """How the run ends: its status, or ``does_not_last``: memory that grows from step to step ends a later step."""
        return DOES_NOT_LAST if self.summary.get("verdict") == DOES_NOT_LAST else self.status

    @property
    def fits_and_lasts(self) -> bool:
        """Whether the memory suffices for the whole run, as far as the run has shown."""
        return self.ending == "ok"

    @property
    def basis(self) -> Basis:
        """How the run's times, rates and prices are known."""
        return basis_of(self.source, self.steps, self.summary)

    def comparable(self, key: str) -> Any:
        """Return a value of the summary that may be compared and ranked; ``None`` if it is missing or only a bound."""
        return None if self.basis.is_bound and follows_from_step(key) else self.summary.get(key)

    @cached_property
    def _parsed_detail(self) -> tuple[dict[str, dict[str, dict[str, int]]], list[float]]:
        return json.loads(self.detail)


def view_of(record: Record, path: str) -> RunView:
    """Make the run of a record that was read from the run folder ``path``."""
    same: tuple[str, ...] = ("run_id", "source", "status", "reason", "fingerprint", "isolation")
    same += ("choices", "environment", "timing")
    disagreements = record.command.get("disagreements", [])
    config = with_own_names(with_missing(to_dict(record.config), record.unknown_config))
    return RunView(
        path=path,
        **_with_price(config, record.summary),
        **{key: getattr(record, key) for key in same},
        steps={key: record.steps[key] for key in ("basis_reason", "error") if key in record.steps},
        training_steps=known.steps if (known := extent(record)) else None,
        incomplete=shortcomings(record),
        other_words=other_words(record),
        composed={each["key"]: each["composed"] for each in disagreements if each["key"] in SHAPE},
        detail=json.dumps([_phases(record.ranks), slowest(record.ranks, "step_seconds")]),
    )


def _with_price(config: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a run with a price: a record from before records had one gets the list price of its GPU."""
    keys = ("gpu", "gpus", "nodes", "usd_per_gpu_hour")
    gpu, gpus, nodes, own = (value_at(config, f"hardware.{key}") for key in keys)
    price = list_price(gpu, gpus) if gpu and gpus and nodes and own is None else None
    if price is None:
        return {"config": config, "summary": summary}
    usd = price.usd_per_gpu_hour
    if rate := summary.get("tokens_per_second"):
        summary = {**summary, "usd_per_million_tokens": usd * gpus * nodes / 3600 / rate * 1e6}
    config = {**config, "hardware": {**config["hardware"], "usd_per_gpu_hour": usd}}
    where = f"list price of {gpu} ({price.provider}, {price.date})"
    return {"config": config, "summary": summary, "list_price": where}


def why_not(run: RunView) -> str:
    """Say how a run ended that does not fit, or that it does not last."""
    return f"does not last: {GROWS}" if run.ending == DOES_NOT_LAST else f"ended as {run.status}"


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


def taken_bytes(run: RunView) -> float | None:
    """Return the most bytes in use on a GPU: as the driver reports, or else as far as the allocator knows."""
    keys = ("device_used_bytes", "peak_reserved_bytes", "peak_allocated_bytes")
    return next((taken for key in keys if (taken := peak(run, key))), None)


def free_bytes(run: RunView) -> float | None:
    """Return the memory that stays free on the fullest GPU; ``None`` if it is not known, or if the run does not fit
    or does not last."""
    memory, taken = value_at(run.config, "hardware.memory_gib"), taken_bytes(run)
    return memory * GIB - taken if memory and taken and run.fits_and_lasts else None


def _phases(ranks: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    values: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for name, phase in rank["phases"].items():
            for key, value in phase.items():
                values[name][key].append(value)
    return {
        name: {key: {"max": max(each), "min": min(each)} for key, each in phase.items()}
        for name, phase in values.items()
    }
