"""The processes of one launch: started together, watched, and ended together, whatever happens.

When DeepSpeed's launcher is killed, it leaves its ranks running and reports success. So memlab never trusts its exit
code alone. The launcher runs below a deadman, which adopts what the launcher leaves behind (memlab/system/deadman.py).
"""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memlab.launch.launch_control import LaunchControl
from memlab.launch.streams import Streams
from memlab.system import deadman

POLL_S = 0.1
TERMINATE_S = 5.0
"""Seconds that processes may take to end after SIGTERM."""
STACKS_S = 2.0
"""Seconds that ranks may take to write their Python stacks."""

RANK_VARIABLES = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"SLURM_PROCID")
"""Variables that may hold a rank's number. The program that starts the ranks sets one of them."""


@dataclass(frozen=True)
class Ended:
    """How a launch ended. ``returncode``: exit code of DeepSpeed's launcher, ``None`` if memlab ended the launch."""

    how: str  # exited | timeout | interrupted
    returncode: int | None
    seconds: float
    outlived_by_ranks: bool = False  # whether ranks were still running when the launcher was gone
    why: str = "by a signal"  # cause of an interruption
    stopped: tuple[int, ...] = ()  # ranks held by SIGSTOP or a debugger at the time-out, which wrote no stacks


class Launch:
    """The processes of a launch, as a context manager: after the block none of them is alive on this machine.

    ``token``: the mark of the processes, if the caller has to know it before the start. ``sigterm``: whether to send
    SIGTERM before SIGKILL.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        streams: Streams,
        token: str | None = None,
        sigterm: bool = True,
    ):
        self.token = token or uuid.uuid4().hex
        self.sigterm = sigterm
        self.streams = streams
        self.began = time.monotonic()
        self.survivors: list[int] = []
        with streams.opened() as arguments:
            grace_s = TERMINATE_S if sigterm else 0.0
            self._process = deadman.Watched(command, environment, self.token, grace_s, streams.own_session, **arguments)

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, *_) -> None:
        try:
            self.stop()
        except KeyboardInterrupt:  # only the first signal raises, so stop runs to its end now
            self.stop()
            raise
        finally:
            self._process.dismiss()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def wait(self, deadline: Callable[[], float], linger: Callable[[], float | None], control: LaunchControl) -> Ended:
        """Wait for the launcher to exit.

        ``deadline()``: time limit in seconds since the launch began; it may move while results come in. ``linger()``:
        ``None`` while results are expected, then the seconds that the processes have to exit; after these seconds the
        launch counts as exited. ``control``: its stop signal interrupts the wait, and so does its reason to end while
        results are expected.
        """
        leave_at = None
        while self._process.poll() is None:
            if control.stop.wait(POLL_S):
                return Ended("interrupted", None, self.seconds)
            if leave_at is None and (seconds := linger()) is not None:
                leave_at = self.seconds + seconds
            if leave_at is not None and self.seconds > leave_at:
                return Ended("exited", 0, self.seconds)
            if leave_at is None and (why := control.reason_to_end()):
                return Ended("interrupted", None, self.seconds, why=why)
            if leave_at is None and self.seconds > deadline():
                return Ended("timeout", None, self.seconds, stopped=self._dump_stacks())
        return Ended("exited", self._process.returncode, self.seconds, bool(self.ranks()))

    def tell(self, number: int | None) -> None:
        """Send a signal to the launcher, if a number is given and the launcher still runs."""
        if number is not None:
            self._process.send_signal(number)

    def leave(self, seconds: float) -> None:
        """Wait until no process of the launch is left; ``seconds`` at most."""
        deadman.wait_until(lambda: self._process.poll() is not None and not self._process.processes(), seconds, POLL_S)

    def ranks(self) -> list[int]:
        """Return the process ids of the ranks that are alive."""
        return [pid for pid in deadman.marked(self.token) if _is_worker(_of_process(pid, "cmdline"))]

    def stop(self) -> None:
        """End every process of the launch: SIGTERM first (if ``sigterm``), then SIGKILL until none is left.

        A process that waits inside the kernel (a driver, a network file system) dies only after that wait.
        ``survivors`` lists the processes that are alive after ``deadman.KILL_S`` seconds.
        """
        grace_s = TERMINATE_S if self.sigterm and self._process.poll() is None else 0.0
        self.survivors = deadman.end_marked(self.token, grace_s, self._process.deadman.pid)
        wait_s = 0.0 if self.survivors else deadman.KILL_S
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        self.streams.drain(wait_s)

    def _dump_stacks(self) -> tuple[int, ...]:
        """Make every rank write its Python stacks to its log (faulthandler, see memlab.training).

        Returns the ranks that cannot do so because they are stopped.
        """
        pids = self.ranks()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(STACKS_S)
        return tuple(sorted(_rank_of(pid) for pid in pids if _is_stopped(pid)))


def _is_worker(command_line: str) -> bool:
    by_module = "memlab.training" in command_line.split("\0")
    return (by_module or "memlab/training/__main__.py" in command_line) and "deepspeed.launcher" not in command_line


def _is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process (proc_pid_stat(5): states T and t)."""
    return _of_process(pid, "stat").rpartition(")")[2].split()[:1] in (["T"], ["t"])


def _rank_of(pid: int) -> int:
    """Return the rank number of a process, as set by DeepSpeed's launcher, mpirun or srun."""
    variables = dict(each.partition(b"=")[::2] for each in deadman.variables_of(Path(f"/proc/{pid}")))
    return int(next(variables[name] for name in RANK_VARIABLES if name in variables))


def _of_process(pid: int, name: str) -> str:
    """Read a file of a process in /proc; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
