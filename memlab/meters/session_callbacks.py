"""What the recorders and the rank's file do at the events of a session."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .out_of_memory import FailedRequest
from .phases import TimedPiece


@dataclass
class Callbacks:
    """What the recorders and the rank's file do. They outlive a session: a process can measure one training after the
    other.

    ``piece``: each after a part of the run, with its phase, the number of its optimizer step and its figures. ``step``:
    each after an optimizer step; it returns whether it took time. ``first_step``: after the first one.
    ``starts_over``: before a further training of the same objects. ``out_of_memory``: with the failed request and
    the line of the user's script. ``save``: writes the rank's file. ``goes_on``: whether the process takes one more
    step than it was to end after. ``is_recorded``: whether torch's memory history is recorded now. ``outcome``: judges
    the end of the process: status, reason and what ``attached`` says of it.
    """

    piece: list[Callable[[str | None, int | None, TimedPiece], None]] = field(default_factory=list)
    step: list[Callable[[], bool | None]] = field(default_factory=list)
    first_step: Callable[[], None] = lambda: None
    starts_over: Callable[[], None] = lambda: None
    out_of_memory: Callable[[FailedRequest, str | None], None] = lambda request, where: None
    save: Callable[[], None] = lambda: None
    goes_on: Callable[[], bool] = lambda: False
    is_recorded: Callable[[], bool] = lambda: False
    outcome: Callable[[dict[str, Any]], dict[str, Any]] = lambda found: found
