"""The outermost optimizer.step(), which ends a training step.

torch calls its hooks for every optimizer's ``step()``, also where one optimizer steps inside another. The hooks of one
call have the same calling frame, so the frame's depth and code tell which call ends.
"""

import sys
from traceback import walk_stack
from types import CodeType
from typing import Any


class OptimizerCall:
    """The outermost call that runs now, if there is one."""

    def __init__(self):
        self._call: tuple[int, CodeType] | None = None

    def begins(self) -> None:
        """Note the call whose hook runs."""
        self._call = _call_of_step()

    def ends(self) -> bool:
        """Whether the call whose hook runs is the noted one, which then is over."""
        if self._call is None or self._call != _call_of_step():
            return False
        self._call = None
        return True

    def was_left(self) -> bool:
        """Whether an exception left the noted call, which then is over: torch calls no hook after it."""
        if self._call is None or _is_running(*self._call):
            return False
        self._call = None
        return True


def _call_of_step() -> tuple[int, CodeType]:
    """Return the depth in the stack and the code of the function that called memlab, such as torch's hooks of steps."""
    frame: Any = sys._getframe()
    while (frame.f_globals.get("__package__") or "").startswith(__package__):  # that of a script is None
        frame = frame.f_back
    return sum(1 for _ in walk_stack(frame)), frame.f_code


def _is_running(depth: int, code: CodeType) -> bool:
    codes = [frame.f_code for frame, _ in walk_stack(sys._getframe())]  # the innermost first
    return len(codes) >= depth and codes[-depth] is code
