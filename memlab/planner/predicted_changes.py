"""Single changes of a command, each predicted: the memory that the command then needs, and whether it then fits."""

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memlab.core.errors import MemlabError
from memlab.core.record import Record
from memlab.planner.command_changes import JSON_PLACE, Change, possible_changes
from memlab.planner.command_record import TracedCommand, estimate_of
from memlab.planner.search import Outcome, SingleChange, in_order
from memlab.runs.folder import RunFolder

ENOUGH_S = 180
"""Seconds after which no further change is begun."""

Tracer = Callable[[Sequence[str], RunFolder], TracedCommand]
"""Runs changed words on the simulated GPUs. Raises :class:`MemlabError` where the script fails."""


@dataclass(frozen=True)
class Changes:
    """``base``: the command as it is. ``tried``: first those that fit, then by the memory that they save.
    ``not_tried``: the changes for which there was no time."""

    base: Outcome
    tried: list[SingleChange]
    not_tried: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the value of ``Record.command["changes"]``."""
        tried = [
            {"change": one.word, "price": one.price, "saved_bytes": one.saved, **_needs(one.outcome)}
            for one in self.tried
        ]
        return {"base": _needs(self.base), "tried": tried, "not_tried": self.not_tried}


def predicted_changes(
    command: TracedCommand, record: Record, trace: Tracer, on_change: Callable[[str], None]
) -> Changes:
    """Predict each possible change of a command. ``record``: of the command; ``on_change`` gets each change first."""
    facts = record.ranks[0]["attached"]
    found = possible_changes(command.words, record.config, record.unknown_config, facts, command.hardware.gpus)
    base, began = estimate_of(command), time.monotonic()
    tried, not_tried = [], []
    for change in found:
        if time.monotonic() - began > ENOUGH_S and change.words is not None:
            not_tried.append(change.told)
            continue
        on_change(change.told)
        outcome: Outcome
        try:
            outcome = estimate_of(changed_command(change, command, trace))
        except MemlabError as error:
            outcome = str(error)
        saved = None if isinstance(outcome, str) else base.used - outcome.used
        tried.append(SingleChange(change.told, change.price, outcome, saved))
    return Changes(base, in_order(tried), not_tried)


def changed_command(change: Change, command: TracedCommand, trace: Tracer) -> TracedCommand:
    """Trace the changed command; a change of the allocator's settings alone has the traces of ``command``.

    Raises :class:`MemlabError` where the script fails.
    """
    if change.words is None:
        return replace(command, allocator_conf=change.allocator_conf)
    with tempfile.TemporaryDirectory(prefix="memlab-change-") as scratch:
        path = Path(scratch) / "deepspeed.json"
        if change.deepspeed is not None:
            path.write_text(json.dumps(change.deepspeed), encoding="utf-8")
        words = [word.replace(JSON_PLACE, str(path)) for word in change.words]
        return trace(words, RunFolder(Path(scratch) / "run"))


def _needs(outcome: Outcome) -> Mapping[str, Any]:
    if isinstance(outcome, str):
        return {"reason": outcome, "needs": None}
    needs = {"verdict": outcome.verdict, "used": outcome.used, "free": outcome.free, "host": outcome.host}
    return {"reason": None, "needs": needs}
