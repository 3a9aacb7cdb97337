"""Phases and steps of a script in its trace, as memlab's meters tell them apart.

What a piece of the run was is known when it ends. So each piece begins with a BeginPhase event without a name, which
gets its name then. The work is counted from the second step on: the first one is not like the others.
"""

import os
from collections import deque
from typing import Any

from memlab.core.record import EARLY, WORK
from memlab.meters.garbage_collector import paused_garbage_collector
from memlab.meters.owner import Owner
from memlab.meters.ownership import Ownership
from memlab.meters.phases import AFTER_STEPS, TimedPiece
from memlab.meters.session import Session
from memlab.meters.where import user_line
from memlab.simulator.rank.memory_events import block_of
from memlab.simulator.rank.recorder import Recorder
from memlab.simulator.rank.unpredictable import NAME
from memlab.simulator.trace.events import BeginPhase
from memlab.simulator.trace.memory_kinds import name_sites
from memlab.simulator.trace.trace_format import Piece
from memlab.simulator.trace.work_items import BeginWorkPhase, Item, cut_work

ENOUGH_STEPS = 2
"""Steps after which a run that ends early has an answer: the one that makes the optimizer's states, and one more."""

STEPS_TIMED = 16
"""Most steps whose work a trace keeps, the last ones: a step of a large model has 30,000 items."""


class ScriptSteps:
    """Writes phases, steps and the work of steps into the trace of ``recorder``, at the events of ``session``."""

    def __init__(self, session: Session, recorder: Recorder):
        self._session, self._recorder = session, recorder
        self._trace, self._counter = recorder.trace, recorder.counter
        self._works: deque[tuple[list[Item], list[int]]] = deque(maxlen=STEPS_TIMED)
        self._outside: list[range] = []  # items of the running step that belong to pieces outside the steps
        self._collectives_before = 0
        self._calls = 0  # calls of operators until the owners of memory were last looked for
        self._step_begin: int | None = None  # index of the first event of the running step
        self._ownership = Ownership(lambda: session.objects.optimizers, block_of)
        self._owners: dict[int, Owner] = {}  # by the block's key
        self._begin_piece()
        session.callbacks.piece, session.callbacks.step = [self._piece_ends], [self._step_ends]
        session.callbacks.outcome = self._or_early
        session.is_simulated = True
        recorder.sites.follow_script(user_line)
        recorder.sites.follow_modules(on_entering=self._counter.module)
        recorder.memory.on_first_request = self._read_settings

    @paused_garbage_collector()  # naming replaces events by the million
    def finish(self) -> None:
        """Write what is only known at the end, and stop recording. The session has ended."""
        self._name_piece(None, None, None, ends_phase=False)
        self._counter.items.clear()
        self._counter.events_before.clear()
        if not self._works:
            self._trace.unknown.setdefault(WORK, "the first step is not like the others, and no second one was run")
        else:
            *earlier, (work, events_before) = self._works
            self._trace.earlier_work = [items for items, _ in earlier]
            self._trace.work, self._trace.events_before = work, events_before
        self._recorder.stop()
        name_sites(self._trace, self._owners, self._recorder.sites.vocabularies)

    def _or_early(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Let an exception after the steps be an end: of what uses the trained model, or of the simulation itself."""
        is_early = outcome["status"] == "failed" and outcome["ended"] == "exception"
        is_beside = outcome.get("failed_in") in AFTER_STEPS or (outcome.get("reason") or "").startswith(NAME)
        if is_early and is_beside and self._session.steps_done >= ENOUGH_STEPS:
            return {**outcome, "status": "ok", "ended": EARLY}
        return outcome

    def _read_settings(self) -> None:
        """Read the allocator's settings where torch reads them: in the environment, when the GPU is first used."""
        names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        by_the_script, self._trace.allocator_conf = self._trace.allocator_conf, ""
        self._recorder.set_allocator(next((os.environ[name] for name in names if os.environ.get(name)), ""))
        self._recorder.set_allocator(by_the_script)

    def _begin_piece(self) -> None:
        self._event, self._item = len(self._trace.events), len(self._counter.items)
        self._trace.events.append(BeginPhase(0))
        self._counter.phase(0)

    def _piece_ends(self, phase: str | None, step: int | None, cut: TimedPiece) -> None:
        if step is not None and self._step_begin is None:
            self._step_begin = self._event
        if step is None:
            self._outside.append(range(self._item, len(self._counter.items)))
        if cut.ends_phase and self._recorder.memory.calls > self._calls:  # else no memory has got a new owner
            self._owners |= self._ownership.after(phase)  # a later look knows more
            self._calls = self._recorder.memory.calls
        self._name_piece(phase, step, cut.where, cut.ends_phase)
        self._begin_piece()

    def _name_piece(self, phase: str | None, step: int | None, where: str | None, ends_phase: bool) -> None:
        index = self._trace.phase_number(phase or "")
        self._trace.events[self._event] = BeginPhase(index)
        items = self._counter.items
        begin = items[self._item] if self._item < len(items) else None
        if isinstance(begin, BeginWorkPhase):
            items[self._item] = begin._replace(phase=index)
        self._trace.pieces.append(Piece(step, where, ends_phase))

    def _step_ends(self) -> None:
        self._trace.steps.append(self._event if self._step_begin is None else self._step_begin)
        self._step_begin = None
        self._keep_work()
        if len(self._trace.steps) == 1:
            self._counter.start()

    def _keep_work(self) -> None:
        """Keep the work of the step that has ended, and count the next one from nothing."""
        items, events_before = self._counter.items, self._counter.events_before
        if items:
            outside = {index for indices in self._outside for index in indices}
            keep = [index not in outside for index in range(len(items))]
            before = [number for number, kept in zip(events_before, keep, strict=True) if kept]
            self._works.append((cut_work(items, keep, self._collectives_before), before))
        items.clear()
        events_before.clear()
        self._outside.clear()
        self._item, self._collectives_before = 0, self._counter.collectives
