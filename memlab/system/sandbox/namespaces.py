"""A program run in namespaces of its own: ``python namespaces.py SCRATCH [network] [keep=FOLDER]... [below=FOLDER
layer=LAYER...] -- WORDS``.

The program sees the whole machine, but each change of a file stays in SCRATCH, in overlays (mount_namespaces(7), and
Documentation/filesystems/overlayfs.rst of the kernel)::

    SCRATCH/root        the root that the program sees
    SCRATCH/upper/N     what the program changed in the N-th folder that SCRATCH/layers lists

``keep=FOLDER``: a folder that the program may really change. ``below=FOLDER layer=LAYER...``: a folder in which the
program finds the files of the layers, too, where it has none of the same name. Without ``network``, it can connect to
its own loopback device only. Its process ids, System V memory, /dev (with no GPU) and /dev/shm are its own; /sys and
the settings of the machine in /proc are read-only. They stay so: no process of the program can mount anything or make
user namespaces, and of root's privileges the program keeps only those over its own files and processes.

The kernel gives an overlay no folder that has mounts below it (in a user namespace, these are locked). Such a folder is
made anew, and each of its entries is an overlay. Read-only are then the files directly in it, and file systems that an
overlay cannot be over.

When the program ends, or when this process is killed, the kernel ends every process inside. This file imports only the
standard library, and needs no privilege where the system lets users make user namespaces.
"""

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

LAYERS, UPPER, ROOT = "layers", "upper", "root"
NETWORK, KEEP, BELOW, LAYER = "network", "keep=", "below=", "layer="

FAILED = 125
"""Exit code if the namespaces cannot be made."""
NOT_FOUND = 127
"""Exit code if the program does not exist, as of a shell."""

SETTINGS = ("bus", "fs", "irq", "sys", "sysrq-trigger")
"""Entries of /proc by which root changes the whole machine; Docker's default makes the same ones read-only."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "pts")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}

PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}

# linux/sched.h, linux/mount.h, linux/prctl.h, linux/if.h, asm/unistd.h
NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NETWORK = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
READ_ONLY, BIND, RECURSIVE, PRIVATE = 1, 4096, 16384, 1 << 18
DETACH = 2
AT_RECURSIVE = 0x8000
SYS_PIVOT_ROOT, SYS_MOUNT_SETATTR = 155 if os.uname().machine == "x86_64" else 41, 442
SET_DEATH_SIGNAL, DROP_CAPABILITY, NO_NEW_PRIVILEGES = 1, 24, 38
SET_INTERFACE_FLAGS, INTERFACE_UP = 0x8914, 1

CAPABILITIES = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "net_bind_service": 10,
}
"""Capabilities that a program of root keeps, with their numbers in linux/capability.h: over files, over processes and
ports of the sandbox."""
CAPABILITY_VERSION = 0x20080522
"""The version whose sets have 64 bits (capset(2))."""

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    here = sys.argv.index("--")
    scratch, *options = sys.argv[1:here]
    try:
        _enter(NEW_USER | NEW_MOUNTS | NEW_PIDS | NEW_IPC | (0 if NETWORK in options else NEW_NETWORK))
    except OSError as error:
        return _failed(error)
    child = os.fork()
    return attend(child) if child else _first_process(Path(scratch), options, sys.argv[here + 1 :])


def given(name: str, options: Sequence[str]) -> list[str]:
    """Return the values of the options of this name, which ends with ``=``."""
    return [option.removeprefix(name) for option in options if option.startswith(name)]


def _enter(flags: int) -> None:
    """Enter new namespaces, with the same user and groups. Only a process outside may map more ids than one."""
    parent, user, group = os.getpid(), os.getuid(), os.getgid()
    ready, entered = os.pipe()
    helper = os.fork()
    if not helper:
        os.close(entered)
        code = 1
        with contextlib.suppress(OSError):
            if os.read(ready, 1):
                _map_ids(Path(f"/proc/{parent}"), user, group)
                code = 0
        os._exit(code)
    try:
        call("unshare", flags)
        os.write(entered, b"1")
    finally:
        os.close(entered)
        os.close(ready)
        failed = os.waitpid(helper, 0)[1]
    if failed:
        raise OSError("user ids cannot be mapped")


def _map_ids(process: Path, user: int, group: int) -> None:
    """Map all ids to themselves, which only root may do, or the user's own."""
    try:
        for name in ("uid_map", "gid_map"):
            (process / name).write_text(f"0 0 {2**32 - 1}")
    except PermissionError:
        (process / "setgroups").write_text("deny")
        (process / "uid_map").write_text(f"{user} {user} 1")
        (process / "gid_map").write_text(f"{group} {group} 1")


def _first_process(scratch: Path, options: Sequence[str], words: list[str]) -> int:
    """Make the program's view of the machine, and run the program. Returns its exit code."""
    call("prctl", SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    keep, below, layers = (list(map(Path, given(name, options))) for name in (KEEP, BELOW, LAYER))
    folder = os.getcwd()
    try:
        if NETWORK not in options:  # no network but the loopback device, which has to be started
            with socket.socket() as any_socket:
                fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, struct.pack("16sH14x", b"lo", INTERFACE_UP))
        View(scratch).enter(keep, below, layers)
        os.chdir(folder)
        Path("/proc/self/oom_score_adj").write_text("1000")  # out of memory, the kernel ends this program first
        give_up_privileges()
    except OSError as error:
        return _failed(error)
    program = os.fork()
    return attend(program) if program else execute(words)


def execute(words: list[str]) -> int:
    """Become a program. Returns an exit code if there is none."""
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND


def give_up_privileges() -> None:
    """Let neither this process nor what it starts have more than ``CAPABILITIES``, whatever it executes."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    with contextlib.suppress(PermissionError):  # an ordinary user has none, and gets none
        for number in set(range(last + 1)) - set(CAPABILITIES.values()):
            call("prctl", DROP_CAPABILITY, number, 0, 0, 0)
    held = re.findall(r"CapPrm:\s*(\S+)", Path("/proc/self/status").read_text())[0]
    kept = int(held, 16) & sum(1 << number for number in CAPABILITIES.values())
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    call("capset", header, struct.pack("6I", kept, kept, 0, 0, 0, 0))  # effective, permitted, inheritable; twice
    call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def attend(child: int) -> int:
    """Wait for a child, reap the orphans of its namespace, and pass signals on. Returns the exit code of the child; of
    a killed one, 128 and the number of the signal.

    A signal of the terminal is not passed on: the child has got it too.
    """
    waited_for = {*PASSED_ON, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if not ended:
            received = signal.sigwaitinfo(waited_for)
            if received.si_signo in PASSED_ON and received.si_code <= 0:  # sent by a process: sigaction(2)
                os.kill(child, received.si_signo)


class View:
    """The machine as the program sees it."""

    def __init__(self, scratch: Path):
        self._scratch = scratch
        self._root = scratch / ROOT
        self._mounts = mount_points()
        self._layers: list[str] = []

    def enter(self, keep: list[Path], below: list[Path], layers: list[Path]) -> None:
        """Make the view below SCRATCH/root, and make that the root of this process. ``below``: the folder that shows
        ``layers`` below its own files, if there is one."""
        _mount(None, "/", RECURSIVE | PRIVATE)
        self._root.mkdir()
        _mount(self._root, self._root, BIND)
        self._show(Path("/"))
        for folder in below:
            with contextlib.suppress(OSError):  # the program then makes again what the layers hold
                self._inside(folder).mkdir(parents=True, exist_ok=True)
                self._overlay(folder, self._inside(folder), layers)
        for folder in keep:
            _mount(folder, self._inside(folder), BIND | RECURSIVE)
        self._make_special()
        (self._scratch / LAYERS).write_bytes(b"\0".join(map(os.fsencode, self._layers)))
        os.chdir(self._root)
        call("syscall", SYS_PIVOT_ROOT, b".", b".")
        call("umount2", b".", DETACH)

    def _inside(self, path: Path) -> Path:
        return self._root / path.relative_to("/")

    def _show(self, folder: Path) -> None:
        inside = self._inside(folder)
        inside.mkdir(exist_ok=True)
        if str(folder) in ("/proc", "/sys", "/dev"):
            return
        try:
            if any(folder in mount.parents for mount in self._mounts):
                self._show_entries(folder, inside)
            else:
                self._overlay(folder, inside)
        except OSError:
            with contextlib.suppress(OSError):  # a folder that even its user cannot bind stays empty
                _mount(folder, inside, BIND | RECURSIVE)
                _make_read_only(inside)

    def _show_entries(self, folder: Path, inside: Path) -> None:
        """Show each entry of a folder. Sockets are left out: whoever listens there is outside."""
        for entry in os.scandir(folder):
            if entry.is_symlink():
                os.symlink(os.readlink(entry), inside / entry.name)
            elif entry.is_dir():
                self._show(folder / entry.name)
            else:
                with contextlib.suppress(OSError):  # a file that its user cannot bind is empty
                    if not stat.S_ISREG(os.lstat(entry.path).st_mode):  # also of what is mounted on a file
                        continue
                    (inside / entry.name).touch()
                    _mount(entry.path, inside / entry.name, BIND)
                    _make_read_only(inside / entry.name)
        _make_alike(folder, inside)

    def _overlay(self, folder: Path, inside: Path, layers: Sequence[Path] = ()) -> None:
        number = str(len(self._layers))
        upper, work = self._scratch / UPPER / number, self._scratch / "work" / number
        for each in (upper, work):
            each.mkdir(parents=True, exist_ok=True)
        _make_alike(inside if layers else folder, upper)
        lower = [folder, *layers] if folder.is_dir() else layers
        folders = {"lowerdir": lower, "upperdir": [upper], "workdir": [work]}
        options = (f"{name}={':'.join(map(_escaped, paths))}" for name, paths in folders.items())
        _mount("overlay", inside, 0, "overlay", ",".join(["userxattr", *options]))
        self._layers.append(str(folder))

    def _make_special(self) -> None:
        processes = self._root / "proc"
        _mount("proc", processes, 0, "proc")
        # of this namespace: inside another, everybody may mount
        (processes / "sys/user/max_user_namespaces").write_text("0")
        for each in filter(Path.exists, (processes / name for name in SETTINGS)):
            _mount(each, each, BIND | RECURSIVE)
            _make_read_only(each)
        _mount("/sys", self._root / "sys", BIND | RECURSIVE)
        _make_read_only(self._root / "sys")
        devices = self._root / "dev"
        _mount("tmpfs", devices, 0, "tmpfs", "mode=755")
        for name in DEVICES:
            target = devices / name
            target.mkdir() if os.path.isdir(f"/dev/{name}") else target.touch()
            _mount(f"/dev/{name}", target, BIND | RECURSIVE)
        for name, place in LINKS.items():
            os.symlink(place, devices / name)
        (devices / "shm").mkdir()
        _mount("tmpfs", devices / "shm", 0, "tmpfs", "mode=1777")


def mount_points() -> list[Path]:
    """Return where file systems are mounted (proc_pid_mountinfo(5): field 5, with octal escapes)."""
    fields = (line.split(b" ")[4] for line in Path("/proc/self/mountinfo").read_bytes().splitlines())
    escape = re.compile(rb"\\([0-7]{3})")
    return [Path(os.fsdecode(escape.sub(lambda code: bytes([int(code[1], 8)]), field))) for field in fields]


def _escaped(path: Path) -> str:
    return re.sub(r"([\\:,])", r"\\\1", str(path))


def _make_alike(folder: Path, copy: Path) -> None:
    shutil.copystat(folder, copy)
    with contextlib.suppress(OSError):  # an owner that is not mapped
        os.chown(copy, os.stat(folder).st_uid, os.stat(folder).st_gid)


def _mount(
    source: os.PathLike | str | None, target: os.PathLike | str, flags: int, kind: str = "", data: str = ""
) -> None:
    words = (None if source is None else os.fsencode(source), os.fsencode(target), kind.encode() or None)
    call("mount", *words, flags, os.fsencode(data) or None)


def _make_read_only(mount: Path) -> None:
    """Make a mount and all mounts below it read-only (mount_setattr(2), Linux 5.12)."""
    attributes = struct.pack("QQQQ", READ_ONLY, 0, 0, 0)
    call("syscall", SYS_MOUNT_SETATTR, -1, os.fsencode(mount), AT_RECURSIVE, attributes, len(attributes))


def call(name: str, *arguments: object) -> int:
    """Call a function of the C library. Raises :class:`OSError`."""
    result = getattr(_libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _failed(error: OSError) -> int:
    print(f"memlab: no namespaces: {error}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    os._exit(main())
