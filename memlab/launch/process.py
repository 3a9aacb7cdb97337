"""The processes of one launch: started together, watched, and ended together, whatever happens.

DeepSpeed's launcher leaves its ranks behind when it is killed, and then reports success. So its exit code is never
trusted alone, and every process of a launch carries a token in its environment by which it is found, wherever it went.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from memlab.launch import deadman

POLL_S = 0.1
TERMINATE_S = 5.0
"""How long processes may take to end by themselves once they are told to."""
KILL_S = 10.0
"""How long processes may take to die when they are killed."""
STACKS_S = 2.0
"""How long ranks may take to write their Python stacks."""

RANK_VARIABLES = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"SLURM_PROCID")
"""Variables that hold a rank's number; who starts the ranks sets one of them."""


@dataclass(frozen=True)
class Ended:
    """How a launch ended. ``returncode`` is that of DeepSpeed's launcher, ``None`` when memlab ended it."""

    how: str  # exited | timeout | interrupted
    returncode: int | None
    seconds: float
    outlived_by_ranks: bool = False  # the launcher was gone while ranks were still running
    why: str = "by a signal"  # it was interrupted
    stopped: tuple[int, ...] = ()  # ranks that SIGSTOP or a debugger held at the time-out: they could show no stack


class Launch:
    """Use as a context manager: no process of it on this machine is alive after the block.

    ``token``: what marks its processes, where it must be known before. ``sigterm``: whether they are told to end before
    they are killed.
    """

    def __init__(
        self, command: list[str], environment: dict[str, str], log: Path, token: str | None = None, sigterm: bool = True
    ):
        self.token = token or uuid.uuid4().hex
        self.sigterm = sigterm
        self.began = time.monotonic()
        self.survivors: list[int] = []
        self._deadman = subprocess.Popen(
            [sys.executable, "-I", "-S", deadman.__file__, self.token, str(TERMINATE_S if sigterm else 0)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    command,
                    env={**environment, deadman.TOKEN_VARIABLE: self.token},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except BaseException:  # Ctrl-C too: what was started by then is not known here
            deadman.kill_marked(self.token, KILL_S)
            self._dismiss_deadman()
            raise

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, *_) -> None:
        try:
            self.stop()
        except KeyboardInterrupt:  # the first signal alone raises
            self.stop()
            raise
        finally:
            self._dismiss_deadman()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def wait(self, deadline: Callable[[], float], linger: Callable[[], float | None], stop: threading.Event) -> Ended:
        """Wait for the launcher to exit.

        ``deadline()``, in seconds since the launch began, is when to give up; it may move while results come in. Once
        ``linger()`` is a number, all results are there: the processes have so many seconds to exit, and then the launch
        counts as exited. ``stop`` interrupts.
        """
        leave_at = None
        while self._process.poll() is None:
            if stop.wait(POLL_S):
                return Ended("interrupted", None, self.seconds)
            if leave_at is None and (seconds := linger()) is not None:
                leave_at = self.seconds + seconds
            if leave_at is not None and self.seconds > leave_at:
                return Ended("exited", 0, self.seconds)
            if leave_at is None and self.seconds > deadline():
                return Ended("timeout", None, self.seconds, stopped=self._dump_stacks())
        return Ended("exited", self._process.returncode, self.seconds, bool(self.ranks()))

    def ranks(self) -> list[int]:
        """Process ids of the ranks that are alive."""
        return [pid for pid in deadman.marked(self.token) if _is_worker(_command_line(pid))]

    def stop(self) -> None:
        """End every process of the launch: SIGTERM first (if at all), then SIGKILL until none is left.

        A process that waits inside the kernel (a driver, a network file system) does not die before that wait is over:
        ``survivors`` has those that were left after ``KILL_S``.
        """
        if self.sigterm and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            deadline = time.monotonic() + TERMINATE_S
            while time.monotonic() < deadline and any(True for _ in deadman.marked(self.token)):
                time.sleep(POLL_S)
        self.survivors = deadman.kill_marked(self.token, KILL_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_S if not self.survivors else 0)

    def _dismiss_deadman(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._deadman.communicate(deadman.DONE)

    def _dump_stacks(self) -> tuple[int, ...]:
        """Ask every rank for its Python stacks: they go to its log (faulthandler, see memlab.worker).

        Returns the ranks that cannot answer, because they are stopped.
        """
        pids = self.ranks()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(STACKS_S)
        return tuple(sorted(_rank_of(pid) for pid in pids if _is_stopped(pid)))


def _is_worker(command_line: str) -> bool:
    by_module = "memlab.worker" in command_line.split("\0")
    return (by_module or "memlab/worker/__main__.py" in command_line) and "deepspeed.launcher" not in command_line


def _is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds the process (proc_pid_stat(5): the states T and t)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _rank_of(pid: int) -> int:
    """The number of the rank that this process is, as DeepSpeed's launcher, mpirun or srun has told it."""
    variables = dict(each.partition(b"=")[::2] for each in deadman.variables_of(Path(f"/proc/{pid}")))
    return int(next(variables[name] for name in RANK_VARIABLES if name in variables))


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
