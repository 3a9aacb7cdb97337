"""How a process ends, and what failed on the way: for ``status``, ``reason``, ``oom`` and ``ended`` of its file."""

import time
from collections.abc import Mapping
from typing import Any

from . import script_errors
from .phases import EVALUATE
from .where import raised_at, user_line


class Ending:
    """What was heard of the end so far. The script may go on after each of these events."""

    def __init__(self):
        self.failure: dict[str, Any] | None = None  # the last exception that left a phase
        self.stopped = False  # by --steps
        self.evaluates = False  # whether the evaluation of a plain loop was ended
        self._oom: dict[str, Any] | None = None
        self._exit: tuple[Any, str | None] | None = None  # what SystemExit was given, and where

    def fails(self, error: Exception, at: Mapping[str, Any]) -> None:
        """Describe an exception that leaves a phase, and do not keep it: its traceback holds tensors.

        The innermost phase that the exception leaves is the one in which it was raised. ``at``: phase and step.
        """
        if (self.failure or {}).get("id") != id(error):
            self.failure = {"id": id(error), **self._described(error, at["phase"], at["step"])}

    def runs_out_of_memory(self, requested: int, at: Mapping[str, Any], where: str | None) -> None:
        """Note the bytes that torch's allocator could not provide."""
        self._oom = {"requested_bytes": requested, "phase": at["phase"], "step": at["step"], "where": where}

    @property
    def exit_code(self) -> int:
        """The exit code by which the script ends itself; 0: it does not."""
        return _exit_code(self._exit[0]) if self._exit else 0

    @property
    def exit_line(self) -> str | None:
        """How the script ends itself, and where."""
        return f"{_told(self._exit[0])} at {self._exit[1] or 'an unknown line'}" if self._exit else None

    def exits(self, code: Any) -> None:
        """Note ``sys.exit(code)`` or ``SystemExit(code)``. Of those with one exit code the first one counts: the others
        pass it on."""
        if _exit_code(code) != self.exit_code:
            self._exit = code, user_line()

    def goes_on(self) -> None:
        """Forget a call of ``sys.exit``: the script has caught it, and trains."""
        self._exit = None

    def outcome(self, error: BaseException | None, steps_done: int, step: int | None) -> dict[str, Any]:
        """Return ``status``, ``reason``, ``oom`` and what ``attached`` says of the end.

        ``error``: what ended the process. ``step``: the running optimizer step, if there is one.
        """
        given, where = self._exit or (0, None)
        if isinstance(error, SystemExit):
            given, where, error = error.code, raised_at(error), None
        code = _exit_code(given)
        if self.stopped:
            return {"status": "ok", "ended": "stopped"}
        if error is not None:
            known = self.failure if self.failure and self.failure["id"] in (id(error), id(error.__cause__)) else {}
            described = self._described(error, known.get("failed_in", EVALUATE if self.evaluates else None), step)
            return {**described, "failed_at": known.get("failed_at", described["failed_at"])}
        if code and self.failure:
            return {**self.failure, "exit_code": code}
        if code:
            told = {"status": "failed", "reason": f"{_told(given)}.", "ended": "exit", "exit_code": code}
            return {**told, "where": where, "failed_at": time.time()}
        if not steps_done:
            return {"status": "failed", "reason": "no optimizer step seen", "ended": "finished"}
        return {"status": "ok", "ended": "finished"}

    def _described(self, error: BaseException, phase: str | None, step: int | None) -> dict[str, Any]:
        status, reason, oom = script_errors.describe(error)
        where = raised_at(error)
        if oom is not None:
            seen = self._oom or {"phase": phase, "step": step, "where": where}
            oom = {**oom, **{key: value for key, value in seen.items() if value is not None}}
        told = {"status": status, "reason": reason, "oom": oom}
        return {**told, "ended": "exception", "failed_in": phase, "failed_at": time.time(), "where": where}


def _exit_code(code: Any) -> int:
    """Return the exit code that ``SystemExit(code)`` makes."""
    return code if isinstance(code, int) else int(code is not None)


def _told(given: Any) -> str:
    """Write that the script ended itself. ``given``: to ``SystemExit``, a number or a text."""
    text = "" if given is None or isinstance(given, int) else f": {str(given).strip()[:300]}"
    return f"The script ended itself with exit code {_exit_code(given)}{text}"
