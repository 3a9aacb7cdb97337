"""Phases of a process: time is cut at each event of a listener, and each piece is given to a phase when it ends.

What a piece was is often known only at its end: in a plain loop, what comes before ``loss.backward()`` was the forward.
So the timeline keeps a *base*, the phase of code that no listener watches, and a stack of the phases that run.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from .memory import Memory, Reading
from .where import user_line

LOAD, MODEL_BUILD, ENGINE_INIT, RESUME = "load", "model_build", "engine_init", "resume"
FORWARD, BACKWARD, OPTIMIZER_STEP = "forward", "backward", "optimizer_step"
GENERATE, EVALUATE, SAVE = "generate", "evaluate", "save"

IN_A_STEP = (FORWARD, BACKWARD, OPTIMIZER_STEP)
AFTER_STEPS = (GENERATE, EVALUATE, SAVE)
"""Phases of what a script does with what it has trained."""

BESIDE_STEPS = (LOAD, RESUME, EVALUATE, SAVE)
"""Phases whose time is no part of a step, and inside them only ``generate`` is a phase of its own."""
ONCE = (LOAD, MODEL_BUILD, ENGINE_INIT, RESUME)
"""Phases without a ``first_``."""


@dataclass
class TimedPiece:
    """Time between two events, ended by the second one."""

    phase: str | None
    reading: Reading
    seconds: float
    where: str | None
    ends_phase: bool


class Timeline:
    """Cuts the time of the process into pieces, and calls ``ended`` with each. The session decides which thread may use
    it."""

    def __init__(self, memory: Memory, ended: Callable[[TimedPiece], None]):
        self.memory, self.ended = memory, ended
        self.base: str | None = MODEL_BUILD  # None: outside all phases
        self.stack: list[str] = []
        self.is_marked_by_script = False  # the script itself begins its phases; the time between them belongs to none
        self.began = time.perf_counter()
        self.where: str | None = None

    @property
    def current(self) -> str | None:
        return self.stack[-1] if self.stack else self.base

    @property
    def beside_steps(self) -> bool:
        return any(phase in BESIDE_STEPS for phase in self.stack)

    def cut(self, phase: str | None, ends_phase: bool = False) -> None:
        """End the running piece as one of ``phase``, and begin the next."""
        reading, now = self.memory.turn(), time.perf_counter()
        self.ended(TimedPiece(phase, reading, now - self.began, self.where, ends_phase))
        self.began, self.where = now, user_line()

    def enter(self, phase: str) -> bool:
        """Begin a phase. Returns ``False`` if it is a part of the phase that runs: then it has no end either."""
        if self.stack and self.current == phase:
            return False
        if self.beside_steps and phase != GENERATE:
            return False
        self.cut(self._before(phase), ends_phase=phase == BACKWARD)
        self.stack.append(phase)
        return True

    def leave(self) -> None:
        """End the running phase."""
        phase = self.stack[-1]
        self.cut(phase, ends_phase=True)
        self.stack.pop()
        if phase in (BACKWARD, OPTIMIZER_STEP):
            self.base = None

    def _before(self, phase: str) -> str | None:
        """The phase of the piece that ends when ``phase`` begins."""
        if self.is_marked_by_script or self.stack:
            return self.current
        if phase == BACKWARD:
            return FORWARD
        if phase == OPTIMIZER_STEP and self.base is None:
            return OPTIMIZER_STEP  # gradients are clipped between backward and step
        if phase in BESIDE_STEPS and self.base == FORWARD:
            return None  # it was the way from the last step to here
        return self.base

    def begin_base(self, phase: str | None) -> None:
        """Go over to another base, outside all phases that run."""
        if not self.stack and not self.is_marked_by_script:
            if self.base != phase:
                self.cut(self.base, ends_phase=True)
                self.base = phase
            else:
                self.where = user_line()
