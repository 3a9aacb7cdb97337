"""More steps of equal shape, where the steps so far hold memory that earlier ones have made: does it go on?"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from memlab.meters.growth import LEAST_GROWTH
from memlab.meters.session import Session
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.trace_format import Trace

MORE_STEPS = 30
MORE_S = 60.0
"""Most steps more, and the time after which none begins."""

UNTIL_SEEN = 3
"""Steps of equal shape after which growth must be seen, where a loader gives a batch before the last one is used."""


class MoreSteps:
    """Decides whether a simulated script takes more steps than those that its prediction needs."""

    def __init__(self, session: Session, trace: Trace):
        self._session, self._trace = session, trace
        self._begun: tuple[int, float] | None = None  # steps that were done before, and when

    def goes_on(self) -> bool:
        """Whether a script that counts its steps itself takes one more. Growth has been seen over its last steps."""
        if not self._session.growth.bytes_per_step or not self._has_room():
            return False
        self._session.last_step = self._session.steps_done + 1
        return True

    def repeated(self, step: Sequence[Any], most: int) -> Iterator[Any]:
        """Yield the batches of one optimizer step again. ``most``: batches that the loader has left."""
        if not step or not holds_earlier_steps(self._trace):
            return
        for number in range(most // len(step)):
            if not self._has_room() or (number >= UNTIL_SEEN and not self._session.growth.bytes_per_step):
                return
            yield from step

    def _has_room(self) -> bool:
        done, now = self._session.steps_done, time.monotonic()
        self._begun = self._begun or (done, now)
        return done < self._begun[0] + MORE_STEPS and now < self._begun[1] + MORE_S


def holds_earlier_steps(trace: Trace) -> bool:
    """Whether each step from the second to the last but one has made memory that is still there.

    After two steps, the forward pass of the first one is taken: its optimizer step makes states that stay.
    """
    freed = {event.key for event in trace.events if isinstance(event, Free)}
    ends = [*trace.steps[1:], len(trace.events)]
    if len(trace.steps) < 2:
        return False
    if len(trace.steps) == 2:
        return _held(trace, trace.steps[0], ends[0], freed, "first_forward") >= LEAST_GROWTH
    return all(
        _held(trace, begin, end, freed) >= LEAST_GROWTH
        for begin, end in zip(trace.steps[1:-1], ends[1:-1], strict=True)
    )


def _held(trace: Trace, begin: int, end: int, freed: set[int], phase: str | None = None) -> int:
    """Return the bytes that were requested from event ``begin`` to ``end``, in a phase, and are not freed."""
    now, nbytes = None, 0
    for event in trace.events[begin:end]:
        if isinstance(event, BeginPhase):
            now = trace.phases[event.phase]
        elif isinstance(event, Alloc) and event.key not in freed and phase in (None, now):
            nbytes += event.nbytes
    return nbytes
