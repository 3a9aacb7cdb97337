"""Work of one optimizer step, cut out of the work of a command's whole run."""

from collections.abc import Sequence
from typing import Any

from memlab.predict.trace.work_items import NUMBERED, Collective, HostWork, Item, RecordEvent


def cut_work(items: Sequence[Item], keep: Sequence[bool], collectives_before: int) -> list[Item]:
    """Return the items to ``keep``, with events and collectives numbered from 0.

    ``collectives_before``: number of collectives that ran before ``items``. A wait for something that is not kept is
    over before the step: only its operators and modules stay.
    """
    numbers: dict[type, dict[int, int]] = {RecordEvent: {}, Collective: {}}
    collectives, found = collectives_before, []
    for item, kept in zip(items, keep, strict=True):
        if isinstance(item, Collective):
            if kept:
                numbers[Collective][collectives] = len(numbers[Collective])
            collectives += 1
        elif kept and isinstance(item, RecordEvent):
            numbers[RecordEvent][item.event] = len(numbers[RecordEvent])
        if kept:
            found.append(_renumbered(item, numbers))
    return found


def _renumbered(item: Any, numbers: dict[type, dict[int, int]]) -> Any:
    if type(item) not in NUMBERED:
        return item
    field, kind = NUMBERED[type(item)]
    number = getattr(item, field)
    if number < 0:  # EVERYTHING
        return item
    if number not in numbers[kind]:
        return HostWork(item.operators, item.modules, ())
    return item._replace(**{field: numbers[kind][number]})
