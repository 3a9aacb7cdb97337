"""How a process ends, and what failed on the way: for ``status``, ``reason``, ``oom`` and ``ended`` of its file."""

from collections.abc import Mapping
from typing import Any

from . import script_errors
from .where import raised_at, user_line


class Ending:
    """What was heard of the end so far. The script may go on after each of these events."""

    def __init__(self):
        self.failure: dict[str, Any] | None = None  # the last exception that left a phase
        self.stopped = False  # by --steps
        self._oom: dict[str, Any] | None = None
        self._exit: tuple[int, str | None] | None = None  # code of sys.exit, and where

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
        """The code of the last call of ``sys.exit``; 0 without one."""
        return self._exit[0] if self._exit else 0

    def exits(self, code: Any) -> None:
        """Note a call of ``sys.exit``."""
        self._exit = _exit_code(code), user_line()

    def outcome(self, error: BaseException | None, steps_done: int, step: int | None) -> dict[str, Any]:
        """Return ``status``, ``reason``, ``oom`` and what ``attached`` says of the end.

        ``error``: what ended the process. ``step``: the running optimizer step, if there is one.
        """
        code, where = self._exit or (0, None)
        if isinstance(error, SystemExit):
            code, where, error = _exit_code(error.code), raised_at(error), None
        if self.stopped:
            return {"status": "ok", "ended": "stopped"}
        if error is not None:
            known = self.failure if self.failure and self.failure["id"] == id(error) else {}
            return self._described(error, known.get("failed_in"), step)
        if code and self.failure:
            return {**self.failure, "exit_code": code}
        if code:
            reason = f"The script ended itself with exit code {code}."
            return {"status": "failed", "reason": reason, "ended": "exit", "exit_code": code, "where": where}
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
        return {**told, "ended": "exception", "failed_in": phase, "where": where}


def _exit_code(code: Any) -> int:
    """Return the exit code that ``SystemExit(code)`` makes."""
    return code if isinstance(code, int) else int(code is not None)
