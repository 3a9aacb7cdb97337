"""The deadman: a separate process that outlives memlab, and then ends the processes of a launch.

memlab starts ``python deadman.py TOKEN GRACE_S SOCKET`` and sends it a command as one line of JSON. The deadman starts
the command, and answers with a line that holds the id of the process, or minus the error number. A second line holds
the exit code. If the socket closes without the word ``done``, memlab is gone. The deadman then sends SIGTERM to every
process of the launch, and SIGKILL after GRACE_S seconds. srun and mpirun use these seconds to end the ranks on other
hosts. Last, it removes the scratch folders of the launch (memlab/system/sandbox).

The processes of a launch are found in three ways: they carry its token among their variables, they descend from the
deadman, and they are in a control group of the launch, where the system lets memlab make one. The deadman adopts the
orphans below it (PR_SET_CHILD_SUBREAPER), so a process descends from it whatever its variables, session or parent. If
the deadman is killed together with memlab, tokens and control groups remain. This file imports only the standard
library.
"""

import contextlib
import ctypes
import errno
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection  # its wait() takes descriptors above 1,023, which select(2) does not
from pathlib import Path
from typing import Any

TOKEN_VARIABLE = "MEMLAB_LAUNCH"
"""The environment variable that marks every process of a launch, whatever group or session it moves to."""

DEADMAN_VARIABLE = "MEMLAB_DEADMAN"
"""Holds the token in a deadman, which must not carry the mark of the processes that it ends."""

DONE = b"done\n"

LAST_S = 20.0
"""Seconds after which the scratch folders of a launch are removed in any case."""

ADOPT_ORPHANS = 36
"""Linux: PR_SET_CHILD_SUBREAPER of linux/prctl.h."""

SCRATCH = "memlab-scratch-"
"""Prefix of the name of a scratch folder. The token of its launch follows."""
SCRATCH_PLACES = (Path(tempfile.gettempdir()), Path("/dev/shm"))

KILL_S = 10.0
"""Seconds that processes may take to end after SIGKILL."""

EXEC_S = 1.0
"""Seconds that a process may stay inside exec(2) before it counts as not marked."""
NOT_A_PROGRAM = 0x00200000 | 0x00000004
"""Flags of a kernel thread and of an exiting process (Linux: PF_KTHREAD, PF_EXITING of include/linux/sched.h)."""


def marked(token: str) -> Iterator[int]:
    """Yield the ids of the living processes of a launch, and of its parts: ``token-part``."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    return _started_with(lambda each: each == wanted or each.startswith(wanted + b"-"))


def marked_by(variable: str, value: str) -> Iterator[int]:
    """Yield the ids of processes that were started with this environment variable (Linux: /proc), without zombies."""
    return _started_with(f"{variable}={value}".encode().__eq__)


def _started_with(is_wanted: Callable[[bytes], bool]) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended or belongs to another user
            if any(map(is_wanted, variables_of(process))):
                yield int(process.name)


def variables_of(process: Path) -> list[bytes]:
    """Return the variables (``NAME=value``) that a process was started with; ``process``: its folder in /proc.

    Inside exec(2) the environment of a process reads as empty. This function waits up to ``EXEC_S`` seconds for the end
    of exec(2), because a process that is overlooked would never be ended.
    """
    environ = process / "environ"
    variables = environ.read_bytes()
    if not variables:
        wait_until(lambda: not _is_inside_exec(process), EXEC_S, every_s=0.001)
        variables = environ.read_bytes()
    return variables.split(b"\0")


def wait_until(is_over: Callable[[], bool], seconds: float, every_s: float = 0.05) -> None:
    """Wait until a condition holds; ``seconds`` at most. ``every_s``: seconds between two looks."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not is_over():
        time.sleep(every_s)


def _is_inside_exec(process: Path) -> bool:
    """Whether the process has no environment yet after exec(2) (proc_pid_stat(5): fields state, flags, env_end)."""
    fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    state, flags, env_end = fields[0], int(fields[6]), int(fields[48])
    return state not in "ZX" and not flags & NOT_A_PROGRAM and env_end == 0


def descendants(ancestor: int) -> set[int]:
    """Return the ids of all processes below a process, without zombies."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            children.setdefault(int(parent), []).append(int(process.name) if state not in "ZX" else -int(process.name))
    below, found = [ancestor], set[int]()
    while below:
        new = children.get(below.pop(), [])
        found.update(each for each in new if each > 0)
        below += map(abs, new)
    return found


def control_group() -> Path:
    """Return the folder of this process's control group (cgroups(7), version 2). Raises :class:`OSError` if there is
    none."""
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    group = next((line.removeprefix("0::/") for line in groups if line.startswith("0::/")), None)
    if group is None:
        raise FileNotFoundError(errno.ENOENT, "no control groups of version 2")
    unified = Path("/sys/fs/cgroup/unified")  # where version 1 is there as well
    return (unified if unified.exists() else Path("/sys/fs/cgroup")) / group


def group_of(token: str) -> Path:
    """Return the folder of the control group of a launch, which exists only where memlab could make it."""
    return control_group() / f"memlab-{token}"


def processes(token: str, deadman: int | None = None) -> set[int]:
    """Return the ids of the living processes of a launch. ``deadman``: its process, if it is alive."""
    found = {*marked(token), *(descendants(deadman) if deadman else ())}
    with contextlib.suppress(OSError):  # there is no such group
        found.update(map(int, (group_of(token) / "cgroup.procs").read_text().split()))
    return found - {0}  # a process of a namespace that this process does not see


def _remove_group(token: str) -> None:
    with contextlib.suppress(OSError):  # there is no such group, or a process that cannot be killed is in it
        group_of(token).rmdir()


def kill_marked(token: str, deadman: int | None = None) -> list[int]:
    """Send SIGKILL to every process of a launch until none is left. Returns the ids of survivors after ``KILL_S``
    seconds. ``deadman``: its process, if it is alive."""
    deadline = time.monotonic() + KILL_S
    while alive := processes(token, deadman):
        _send(signal.SIGKILL, alive)
        if time.monotonic() > deadline:
            return sorted(alive)
        time.sleep(0.05)
    _remove_group(token)
    return []


def _send(number: int, pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
            os.kill(pid, number)


def end_marked(token: str, grace_s: float, deadman: int | None = None) -> list[int]:
    """End every process of a launch: SIGTERM if ``grace_s`` is not 0, then, after ``grace_s`` seconds at most, SIGKILL.
    Returns the ids of survivors."""
    if grace_s:
        _send(signal.SIGTERM, processes(token, deadman))
        wait_until(lambda: not processes(token, deadman), grace_s)
    return kill_marked(token, deadman)


class Watched:
    """A command below a deadman of its own. Its attributes and methods are as those of ``subprocess.Popen``.

    ``environment``: its variables, to which the token is added. ``grace_s``: seconds between SIGTERM and SIGKILL if
    memlab is killed; 0: no SIGTERM. ``own_session``: whether the command leaves the session and the process group of
    memlab. ``streams``: the arguments of ``subprocess.Popen`` for them. Raises :class:`OSError` if the command cannot
    be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        token: str,
        grace_s: float = 0.0,
        own_session: bool = True,
        **streams: Any,
    ):
        self.args, self.token = list(words), token
        self.returncode: int | None = None
        request = {"words": self.args, "variables": {**environment, TOKEN_VARIABLE: token}, "own_session": own_session}
        self.deadman, self._socket = _start_deadman(token, grace_s, own_session, **streams)
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            self._answers = self._socket.makefile("rb", buffering=0)  # what a buffer holds, nothing can wait for
            self.pid = int(self._answers.readline() or 0)
        except BaseException:  # Ctrl-C: the command may be running already
            self._socket.shutdown(socket.SHUT_RDWR)  # close() does nothing as long as the answers are a file
            self.deadman.wait()
            raise
        if self.pid <= 0:
            self.dismiss()
            why = os.strerror(-self.pid) if self.pid else "memlab's process that watches over it has ended"
            raise OSError(-self.pid, why, self.args[0])

    def poll(self) -> int | None:
        if self.returncode is None and connection.wait([self._socket], 0):
            self.returncode = int(self._answers.readline() or -signal.SIGKILL)  # no answer: the deadman was killed
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not connection.wait([self._socket], timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.poll() or 0

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            _send(number, {self.pid})

    def processes(self) -> set[int]:
        """Return the ids of the living processes of the command."""
        return processes(self.token, self.deadman.pid)

    def dismiss(self) -> None:
        """Let the deadman go: no process of the command is left."""
        with contextlib.suppress(OSError), self._socket:
            self._socket.sendall(DONE)
        try:
            self.deadman.wait(LAST_S)
        except subprocess.TimeoutExpired:  # the command has stopped it
            self.deadman.kill()
            self.deadman.wait()
            _remove_group(self.token)


@contextlib.contextmanager
def guarded(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the variables with the token of a new launch, whose processes end with the block, however it ends.

    They end when an exception leaves the block, and when this process is killed.
    """
    token = uuid.uuid4().hex
    deadman, memlab = _start_deadman(token, 0.0, True)
    with deadman, memlab:
        memlab.sendall(b"null\n")
        try:
            yield {**environ, TOKEN_VARIABLE: token}
        finally:
            kill_marked(token)
            with contextlib.suppress(OSError):
                memlab.sendall(DONE)


def _start_deadman(
    token: str, grace_s: float, own_session: bool, **streams: Any
) -> tuple[subprocess.Popen, socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        words = [sys.executable, "-I", "-S", __file__, token, str(grace_s), str(theirs.fileno())]
        variables = {key: value for key, value in os.environ.items() if key != TOKEN_VARIABLE}  # of a launch around it
        options: dict[str, Any] = {"pass_fds": [theirs.fileno()], "start_new_session": own_session}
        options["env"] = {**variables, DEADMAN_VARIABLE: token}
        return subprocess.Popen(words, **options, **streams), ours


def main() -> None:
    token, grace_s, memlab = sys.argv[1], float(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGCHLD:
            signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not inherited by the command
    ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    received = memlab.makefile("rb")
    command = _start(json.loads(received.readline() or b"null"), token, memlab)
    while memlab not in connection.wait([memlab, woken]):
        woken.recv(4096)
        _reap(command, memlab)
    told = b""
    with contextlib.suppress(ConnectionError):  # memlab was gone before it had read an answer
        told = received.readline()
    if told != DONE:
        end_marked(token, grace_s, os.getpid())
        if command is None:
            _remove_scratch(token)
    _remove_group(token)


def _start(request: Mapping[str, Any] | None, token: str, memlab: socket.socket) -> subprocess.Popen | None:
    """Start the command of a request in a control group of its own, and answer."""
    if request is None:
        return None

    def enter_group() -> None:
        with contextlib.suppress(OSError):
            group = group_of(token)
            group.mkdir(exist_ok=True)
            with (group / "cgroup.procs").open("r+") as members:  # in a group, the kernel has made this file
                members.write("0")

    command, answer, own_session = None, 0, request["own_session"]
    options: dict[str, Any] = {"env": request["variables"], "start_new_session": own_session, "preexec_fn": enter_group}
    try:
        command = subprocess.Popen(request["words"], **options)
        answer = command.pid
    except OSError as error:
        answer = -(error.errno or 0)
    if not own_session:
        os.setpgid(0, 0)  # a signal to memlab's group does not end this process
    with open(os.devnull, "r+b") as nothing:
        for stream in range(3):  # the streams of the command end with the command
            os.dup2(nothing.fileno(), stream)
    with contextlib.suppress(OSError):  # memlab is gone
        memlab.sendall(f"{answer}\n".encode())
    return command


def _reap(command: subprocess.Popen | None, memlab: socket.socket) -> None:
    """Reap the children that have ended, and send the exit code of the command."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if command is not None and ended[0] == command.pid:
                command.returncode = os.waitstatus_to_exitcode(ended[1])
                with contextlib.suppress(OSError):  # memlab is gone
                    memlab.sendall(f"{command.returncode}\n".encode())


def _remove_scratch(token: str) -> None:
    """Remove the scratch folders of a launch, once the deadmen of its commands have ended their processes."""
    wait_until(lambda: not {*marked_by(DEADMAN_VARIABLE, token)} - {os.getpid()}, LAST_S)
    for place in SCRATCH_PLACES:
        for folder in place.glob(f"{SCRATCH}{token}-*"):
            remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder of this user's, if it is there, with what is in it, whatever its permissions and its depth.

    Folders inside it are moved up before they are emptied: the path of a folder can be longer than the kernel takes.
    Files go first, since a file system without space may lack the space for a new name.
    """
    top, moved = os.path.abspath(folder), uuid.uuid4().hex
    if os.path.islink(top) or not os.path.isdir(top):
        return
    folders, names = [top], itertools.count()
    os.chmod(top, 0o700)
    while folders:
        current = folders.pop()
        for entry in sorted(os.scandir(current), key=lambda entry: entry.is_dir(follow_symlinks=False)):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            with contextlib.suppress(OSError):
                os.rmdir(entry.path)  # it is empty, whoever owns it
                continue
            place = os.path.join(top, f"{moved}-{next(names)}")
            os.chmod(entry.path, 0o700)
            os.rename(entry.path, place)
            folders.append(place)
        if current != top:
            os.rmdir(current)
    os.rmdir(top)


if __name__ == "__main__":
    main()
