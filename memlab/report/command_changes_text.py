"""Terminal output of the single changes that were predicted for a command: its words to change, and the memory then."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from memlab.core.record import Record
from memlab.planner.search import Outcome, SingleChange
from memlab.predict.memory.estimate import Estimate
from memlab.report.plan_text import show_changes
from memlab.report.text import say


def show_command_changes(record: Record, out: Console) -> None:
    """Print the predicted changes of a command, if the record has any."""
    changes = (record.command or {}).get("changes")
    if not changes:
        return
    if changes["tried"]:
        show_changes(_outcome(changes["base"]), [_change(one) for one in changes["tried"]], out)
    else:
        say("No single change is known for this command: it has none of the words that memlab can change.", out)
    if changes["not_tried"]:
        say(f"Not predicted, for lack of time: {', '.join(changes['not_tried'])}.", out)


def _change(values: Mapping[str, Any]) -> SingleChange:
    return SingleChange(values["change"], values["price"], _outcome(values), values["saved_bytes"])


def _outcome(values: Mapping[str, Any]) -> Outcome:
    needs = values["needs"]
    return values["reason"] if needs is None else Estimate(**needs, held={})
