"""A program run behind a wall: ``wall SCRATCH [library=FILE]... [keep=FOLDER] [abi=N] [network] -- WORDS``.

Landlock (landlock(7)) lets the program write only in its overlay, in the folder ``keep`` and to some devices. What
Landlock does not know, a filter of system calls refuses, or hands to this process, which outlives the program
(supervisor.py). ``abi``: the version of Landlock, 0 for none. Without ``keep``, namespaces are the wall, and
connections are only listed.
"""

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from memlab.system.deadman import ADOPT_ORPHANS
from memlab.system.sandbox import calls, namespaces
from memlab.system.sandbox.calls import system_call
from memlab.system.sandbox.supervisor import DEVICES, Supervisor

LIBRARY, ABI = "library=", "abi="
REPORT = "report"
"""Folder in the scratch folder that the program's processes really write to."""

START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from memlab.system.sandbox.wall import main; main()"
_PYTHON = [sys.executable, "-I", "-S", "-B", "-c", START, str(Path(__file__).parents[3])]


def words_of(scratch: Path, libraries: Sequence[Path], options: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the words that run a program behind the wall. ``libraries``: those that all its processes load."""
    return [*_PYTHON, str(scratch), *(f"{LIBRARY}{each}" for each in libraries), *options, "--", *words]


# linux/landlock.h, asm/unistd.h, linux/sched.h
SYS_CREATE, SYS_ADD_RULE, SYS_RESTRICT = 444, 445, 446
VERSION, BELOW_PATH, PORT = 1, 1, 2
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""ABI -> number of the rights over files that it knows."""
READING = 1 << 0 | 1 << 2 | 1 << 3
OF_FILES = 1 << 1 | 1 << 14 | 1 << 15
"""The rights over what is no folder: to write, to truncate, to control a device."""
CONNECT_TCP, SIGNALS_AND_NAMES = 1 << 1, 3
PORTS = range(1024, 65536)
"""TCP ports that the program may connect to, where its own processes listen."""
SYS_CLONE, SHARED_FILES = 56 if calls.IS_X86 else 220, 0x400


def landlock_abi() -> int:
    """Return the version of Landlock that the kernel has; 0: none."""
    try:
        return system_call(SYS_CREATE, None, 0, VERSION)
    except OSError:
        return 0


def restrict(abi: int, folders: Sequence[str], is_closed: bool) -> None:
    """Let this process, and what it starts, write only in ``folders`` and to ``DEVICES``. Raises :class:`OSError`."""
    rights = (1 << RIGHTS[min(abi, 5)]) - 1 & ~READING
    ports = CONNECT_TCP if is_closed and abi >= 4 else 0
    known = struct.pack("QQQ", rights, ports, SIGNALS_AND_NAMES if abi >= 6 else 0)
    rules = system_call(SYS_CREATE, known, 8 if abi < 4 else 16 if abi < 6 else 24, 0)
    for path in (*folders, *DEVICES):
        with contextlib.suppress(FileNotFoundError):
            file = os.open(path, os.O_PATH)
            given = rights if os.path.isdir(path) else rights & OF_FILES
            system_call(SYS_ADD_RULE, rules, BELOW_PATH, struct.pack("=Qi", given, file), 0)
            os.close(file)
    for port in PORTS if ports else ():
        system_call(SYS_ADD_RULE, rules, PORT, struct.pack("QQ", CONNECT_TCP, port), 0)
    system_call(SYS_RESTRICT, rules, 0)
    os.close(rules)


def main() -> None:
    here = sys.argv.index("--")
    scratch, *options = sys.argv[1:here]
    libraries, keep, abis = (namespaces.given(name, options) for name in (LIBRARY, namespaces.KEEP, ABI))
    os.environ["LD_PRELOAD"] = " ".join([*libraries, *filter(None, [os.environ.get("LD_PRELOAD")])])
    report, is_closed = Path(scratch) / REPORT, namespaces.NETWORK not in options
    folders = [f"{scratch}/{namespaces.UPPER}", str(report), *keep, "/dev/shm"] if keep else []
    os._exit(run(sys.argv[here + 1 :], report, folders, max(map(int, abis), default=0), is_closed))


def run(words: list[str], report: Path, folders: Sequence[str], abi: int, is_closed: bool) -> int:
    """Run a program behind the wall, and answer its calls. Returns its exit code.

    ``report``: the folder with the lists. ``folders``: those that the program may change; none: namespaces are the
    wall. ``abi``: of Landlock. ``is_closed``: without ``network``.
    """
    namespaces.call("prctl", ADOPT_ORPHANS, 1, 0, 0, 0)
    receives, sends = os.pipe()
    child = system_call(SYS_CLONE, SHARED_FILES | signal.SIGCHLD, 0, 0, 0, 0)  # as fork(2), but with the same files
    if not child:
        os._exit(_execute(words, sends, folders, abi, is_closed))
    listener = int(os.read(receives, 20))
    signal.pthread_sigmask(signal.SIG_BLOCK, {*namespaces.PASSED_ON, signal.SIGCHLD})
    if listener > 0:
        Supervisor(listener, report, folders).start()
    return namespaces.attend(child)


def _execute(words: list[str], sends: int, folders: Sequence[str], abi: int, is_closed: bool) -> int:
    """Restrict this process, send the listener of its filter (0: the system gives none), and become the program."""
    listener = 0
    filtered = {**calls.BESIDE_NAMESPACES, **(calls.ADDRESSES if is_closed else {})}
    if folders:
        filtered |= {**(calls.PATHS if abi else {}), **calls.ATTRIBUTES, **calls.PROCESSES, **calls.REFUSED}
    try:
        namespaces.give_up_privileges()
        if abi:
            restrict(abi, folders, is_closed)
        with contextlib.nullcontext() if abi else contextlib.suppress(OSError):
            listener = calls.install(filtered, calls.MISSING if folders else {})
    except OSError as error:
        print(f"memlab: no wall: {error}", file=sys.stderr)
        return namespaces.FAILED
    finally:
        os.write(sends, str(listener).encode())
    return namespaces.execute(words)
