"""Answers to the system calls that the kernel hands to memlab (seccomp_unotify(2)): memlab refuses a call, makes it in
the caller's place, or lets it go on.

What is refused is listed in a report. Calls that change attributes, and calls with an address of a socket, are made
here, with copies of what the caller has pointed to: else another thread of the caller could change it after the check.
Where the system does not let memlab copy a socket, such calls go on after the check.
"""

import contextlib
import errno
import fcntl
import ipaddress
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_int
from pathlib import Path
from typing import NoReturn

from memlab.system.deadman import descendants
from memlab.system.sandbox.calls import ADDRESSES, ATTRIBUTES, CALLS, PATHS, PROCESSES, WRITES, system_call

# linux/seccomp.h, linux/fcntl.h, sys/socket.h, asm/unistd.h
RECEIVE, SEND, ADD_FILE, GO_ON = 0xC0502100, 0xC0182101, 0x40182103, 1
REQUEST, ANSWER = struct.Struct("QIIiIQ6Q"), struct.Struct("QqiI")
HERE, NO_FOLLOW = -100, 0x100
MESSAGE, VECTOR = struct.Struct("QIxxxxQQQQixxxx"), struct.Struct("QQ")
SYS_PIDFD_GETFD = 438

DEVICES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")]
"""What a program may write to besides its folders."""

THREADS = 4
"""A connection may wait for its other end."""
MOST_SENT = 1 << 20
"""Bytes of a message that memlab copies; the kernel takes less of a datagram."""

LIST_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
"""How files of the report are opened, which the program may replace by something else."""

FOLLOWING, MAKING = ("open", "creat"), ("mk", "symlink", "link")
OWN_SETTINGS = re.compile(r"/proc/(\d+)/(?:task/\d+/)?(?:clear_refs|comm|oom_score_adj)")
OF_ONE_PROCESS = {"setpriority": 0, "ioprio_set": 1}
"""First arguments of these calls: the second one is a process, and no user or group."""
NAMES = {number: name for name, (number, _) in CALLS.items()}


class Caller:
    """The process, or a thread of it, that has made a call. ``key``: the kernel's number of the call."""

    def __init__(self, pid: int, key: int):
        self.pid, self.key = pid, key

    def read(self, address: int, size: int) -> bytes:
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), size, address)

    def text(self, address: int) -> bytes:
        return self.read(address, 4096).split(b"\0")[0]

    def file(self, descriptor: int) -> str:
        number = c_int(descriptor).value
        return f"/proc/{self.pid}/cwd" if number == HERE else f"/proc/{self.pid}/fd/{number}"

    def place(self, where: str, arguments: Sequence[int]) -> str:
        """Return a path that leads this process to what the caller means. ``where``: of :class:`calls.Call`."""
        folder = HERE if where[0] == "h" else arguments[int(where[0])]
        address = arguments[int(where[1])] if len(where) > 1 else 0
        return self.path(self.text(address) if address else b"", folder)

    def path(self, text: bytes, folder: int = HERE) -> str:
        path = re.sub(r"^/proc/(self|thread-self)(?=/|$)", f"/proc/{self.pid}", os.fsdecode(text))
        return os.path.join(self.file(folder), path) if path else self.file(folder)

    def socket(self, descriptor: int) -> socket.socket | None:
        """Return a copy of the caller's socket; ``None`` where the system does not allow it."""
        process = os.pidfd_open(int(_field(f"/proc/{self.pid}/status", "Tgid")))
        try:
            return socket.socket(fileno=system_call(SYS_PIDFD_GETFD, process, descriptor, 0))
        except PermissionError:
            return None
        finally:
            os.close(process)

    def address(self, name: str, arguments: Sequence[int]) -> bytes:
        """Return the address (struct sockaddr) of a call; nothing if it has none."""
        place, size = arguments[1:3] if name == "connect" else arguments[4:6]
        if name.startswith("sendm"):
            place, size, *_ = MESSAGE.unpack(self.read(arguments[1], MESSAGE.size))
        return self.read(place, min(size, 128)) if place else b""

    def data(self, name: str, arguments: Sequence[int]) -> bytes | None:
        """Return what a call sends; ``None`` if more than data."""
        if name == "sendto":
            return self.read(arguments[1], min(arguments[2], MOST_SENT))
        _, _, vectors, number, control, _, _ = MESSAGE.unpack(self.read(arguments[1], MESSAGE.size))
        pieces = VECTOR.iter_unpack(self.read(vectors, VECTOR.size * min(number, 1024)))
        return None if control else b"".join(self.read(start, min(size, MOST_SENT)) for start, size in pieces)


Decision = Callable[[str, Caller, Sequence[int]], int | None]
"""Takes the name of a call, its caller and its arguments. Returns the result of a call that was made in the caller's
place; ``None``: the call goes on. Raises :class:`OSError` for a call that is refused."""


class Supervisor:
    """``listener``: the descriptor of the filter. ``report``: the folder with the list. ``folders``: those that the
    program may change. Without folders, namespaces keep the program from all others, and connections are listed
    only."""

    def __init__(self, listener: int, report: Path, folders: Sequence[str]):
        self._listener, self._report, self._folders = listener, report, folders
        self._name_servers = _name_servers()
        self._decisions: dict[str, Decision] = {
            **dict.fromkeys(PATHS, self._path),
            **dict.fromkeys(ATTRIBUTES, self._attribute),
            "socket": self._netlink,
            **dict.fromkeys(PROCESSES, self._process),
            **dict.fromkeys(ADDRESSES, self._address),
        }

    def start(self) -> None:
        for _ in range(THREADS):
            threading.Thread(target=self._answer_all, daemon=True).start()

    def _answer_all(self) -> None:
        while True:
            request = bytearray(REQUEST.size)
            try:
                fcntl.ioctl(self._listener, RECEIVE, request, True)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):  # the caller has ended, or was interrupted
                    continue
                return
            with contextlib.suppress(OSError):  # as above
                fcntl.ioctl(self._listener, SEND, self._answer(request))

    def _answer(self, request: bytearray) -> bytes:
        key, pid, _, number, _, _, *arguments = REQUEST.unpack(request)
        name = NAMES[number]
        try:
            if name not in self._decisions:
                self._refuse(name)
            result = self._decisions[name](name, Caller(pid, key), arguments)
            return ANSWER.pack(key, result or 0, 0, GO_ON if result is None else 0)
        except (OSError, ValueError, LookupError, struct.error) as error:  # the last ones: arguments without sense
            return ANSWER.pack(key, 0, -(getattr(error, "errno", None) or errno.EPERM), 0)

    def _refuse(self, what: str, number: int = errno.EPERM) -> NoReturn:
        self._list(what)
        raise OSError(number, what)

    def _list(self, what: str) -> None:
        self._append("refused", what.replace("\n", " ").encode(errors="surrogateescape") + b"\n")

    def _append(self, name: str, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the program has put something else in its place
            file = os.open(self._report / name, LIST_FLAGS, 0o600)
            os.write(file, line)
            os.close(file)

    def _is_own(self, path: str) -> bool:
        """Whether the program may change a file, or something without a path: a pipe, memory."""
        return not path.startswith("/") or path.startswith("/memfd:") or _is_below(path, self._folders)

    def _path(self, name: str, caller: Caller, arguments: Sequence[int]) -> int | None:
        """List a call that Landlock is going to refuse. Open settings of the program's own processes for the caller."""
        if name == "openat2" and not int.from_bytes(caller.read(arguments[2], 8), sys.byteorder) & WRITES:
            return None
        for where in PATHS[name].where.split("/"):
            given = caller.place(where, arguments).rstrip("/")
            place = os.path.join(os.path.realpath(os.path.dirname(given)), os.path.basename(given))
            if name.startswith(FOLLOWING):
                place = os.path.realpath(place)
            if (own := OWN_SETTINGS.fullmatch(place)) and _is_own_process(int(own[1])):
                file = os.open(place, os.O_WRONLY)
                request = bytearray(struct.pack("QIIII", caller.key, 0, file, 0, os.O_CLOEXEC))
                with contextlib.closing(os.fdopen(file, "wb", 0)):
                    return fcntl.ioctl(self._listener, ADD_FILE, request, True)
            is_there = os.path.lexists(place)
            if is_there and name.startswith(MAKING):  # the kernel says so
                continue
            may = os.access(place if is_there and name.startswith(FOLLOWING) else os.path.dirname(place), os.W_OK)
            if may and not self._is_own(place) and not _is_below(place, DEVICES):
                self._list(f"{name} {place}")
        return None

    def _netlink(self, name: str, caller: Caller, arguments: Sequence[int]) -> None:
        """Let the C library ask the kernel for the names of networks, with a raw socket."""
        if c_int(arguments[0]).value != socket.AF_NETLINK:
            self._refuse(name)

    def _attribute(self, name: str, caller: Caller, arguments: Sequence[int]) -> int:
        """Change the attributes of a file for the caller."""
        where = ATTRIBUTES[name].where
        flags = arguments[int(where[2])] if where[2:].isdigit() else 0
        follow = not (where.endswith("l") or flags & NO_FOLLOW)
        with _opened(caller.place(where, arguments), 0 if follow else os.O_NOFOLLOW) as (path_here, real):
            if not self._is_own(real):
                self._refuse(f"{name} {real}")
            return _change(name, path_here, caller, arguments[int(where[1:2] or 0) + 1 :])

    def _process(self, name: str, caller: Caller, arguments: Sequence[int]) -> int | None:
        """Check that a signal, or a change of limits, goes to the program's own processes."""
        target = c_int(arguments[name in OF_ONE_PROCESS]).value
        if name == "pidfd_send_signal":
            target = int(_field(f"/proc/{caller.pid}/fdinfo/{target}", "Pid"))
        if target > 0:
            is_own = _is_own_process(target)
        else:
            group = -target or os.getpgid(caller.pid)
            others = descendants(0) - descendants(os.getpid()) - {os.getpid()}
            is_own = target != -1 and not any(os.getpgid(other) == group for other in others)
        if not is_own or arguments[0] != OF_ONE_PROCESS.get(name, arguments[0]):
            self._refuse(f"{name} to process {target}")
        if name != "pidfd_send_signal":
            return None
        os.kill(target, arguments[1])  # made here: the caller may have another process under this descriptor by now
        return 0

    def _address(self, name: str, caller: Caller, arguments: Sequence[int]) -> int | None:
        """Connect or send for the caller."""
        if not self._folders:
            self._checked_port(name, caller.address(name, arguments), None)
            return None
        flags = 0 if name == "connect" else arguments[2 if name == "sendmsg" else 3]
        with caller.socket(arguments[0]) or contextlib.nullcontext() as own:
            if own is not None and own.family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
                return None
            if flags & socket.MSG_FASTOPEN:
                self._refuse(f"{name} with TCP Fast Open")
            if own is not None and name != "connect" and own.type != socket.SOCK_DGRAM:
                return None  # it has its address already
            given = caller.address(name, arguments)
            if number := self._checked_port(name, given, own):
                raise OSError(number, os.strerror(number))
            with self._own_address(given, caller) as address:
                if own is None:
                    return None
                if name == "connect":
                    return system_call(ADDRESSES[name].number, own.fileno(), address, len(address))
                data = caller.data(name, arguments)
                if name == "sendmmsg" or (data is None and address):
                    self._refuse(name)
                if data is None:  # files for the process at the other end
                    return None
                to = (address or None, len(address))
                return system_call(ADDRESSES["sendto"].number, own.fileno(), data, len(data), flags, *to)

    def _checked_port(self, name: str, address: bytes, own: socket.socket | None) -> int:
        """List a connection that does not stay among the program's processes. Returns the number of the error."""
        family = int.from_bytes(address[:2], sys.byteorder)
        if family == socket.AF_UNSPEC and name != "connect":
            family = socket.AF_INET  # as the kernel takes it
        if family not in (socket.AF_INET, socket.AF_INET6) or len(address) < 16:
            return 0
        port = int.from_bytes(address[2:4], "big")
        host = ipaddress.ip_address(address[4:8] if family == socket.AF_INET else address[8:24].ljust(16, b"\0"))
        what = f"connection to {host if family == socket.AF_INET else f'[{host}]'}:{port}"
        to = getattr(host, "ipv4_mapped", None) or host
        if not (to.is_loopback or to.is_unspecified):
            if port and (str(host), port) not in self._name_servers:  # port 0 only asks for a route
                self._list(what)
            return errno.ENETUNREACH
        kinds = {socket.SOCK_STREAM: ("tcp", "tcp6"), socket.SOCK_DGRAM: ("udp", "udp6")}
        wanted = kinds[own.type] if own is not None else sum(kinds.values(), ())
        listening = set().union(*(_inodes(kind, f":{port:04X}") for kind in wanted))
        if listening and (not self._folders or listening <= _own_inodes()):
            self._append(f"port{port}", b"")
            return 0
        self._list(what)
        return errno.ECONNREFUSED if listening else 0

    @contextlib.contextmanager
    def _own_address(self, address: bytes, caller: Caller) -> Iterator[bytes]:
        """Yield the address to use; that of a Unix socket leads to the file that was checked."""
        if int.from_bytes(address[:2], sys.byteorder) != socket.AF_UNIX or len(address) == 2:
            yield address
        elif not address[2]:
            name = "@" + os.fsdecode(address[3:]).replace("\0", "@")
            if not (listening := _inodes("unix", name)) or not listening <= _own_inodes():
                self._refuse(f"connection to {name}", errno.ECONNREFUSED)
            yield address
        else:
            with _opened(caller.path(address[2:].split(b"\0")[0])) as (path, real):
                if not self._is_own(real):
                    self._refuse(f"connection to {real}", errno.ECONNREFUSED)
                yield struct.pack("H", socket.AF_UNIX) + path + b"\0"


def _change(name: str, path: bytes, caller: Caller, given: Sequence[int]) -> int:
    """Change the attributes of a file of this process. ``given``: the arguments of the call after the path."""
    if "chmod" in name:
        return system_call(ATTRIBUTES["fchmodat"].number, HERE, path, given[0])
    if "chown" in name:
        return system_call(ATTRIBUTES["fchownat"].number, HERE, path, given[0], given[1], 0)
    if name == "truncate":
        return system_call(ATTRIBUTES[name].number, path, given[0])
    if name == "utimensat":
        return system_call(ATTRIBUTES[name].number, HERE, path, caller.read(given[0], 32) if given[0] else None, 0)
    attribute = caller.text(given[0])
    if "remove" in name:
        return system_call(ATTRIBUTES["removexattr"].number, path, attribute)
    value = caller.read(given[1], min(given[2], 1 << 16)) if given[2] else b""
    return system_call(ATTRIBUTES["setxattr"].number, path, attribute, value, len(value), given[3])


@contextlib.contextmanager
def _opened(place: str, flags: int = 0) -> Iterator[tuple[bytes, str]]:
    """Yield a path that leads to one file whatever happens to its folders, and where that file lies."""
    file = os.open(place, os.O_PATH | flags)
    try:
        path = f"/proc/self/fd/{file}"
        yield path.encode(), os.readlink(path)
    finally:
        os.close(file)


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _field(path: str, name: str) -> str:
    """Return a field of a file in /proc. Raises :class:`OSError` if it is not there."""
    found = re.search(rf"^{name}:\s*(\S+)", Path(path).read_text(errors="replace"), re.MULTILINE)
    if not found:
        raise OSError(errno.EBADF, f"no {name} in {path}")
    return found[1]


def _is_own_process(pid: int) -> bool:
    """Whether a process, or a thread, descends from this one, which adopts orphans; or has ended."""
    with contextlib.suppress(OSError):
        status = f"/proc/{pid}/status"
        return int(_field(status, "Tgid")) in descendants(os.getpid()) or _field(status, "State") in "ZX"
    return True


def _name_servers() -> set[tuple[str, int]]:
    """Return the addresses that the C library asks for names; names.cpp lists the names."""
    with contextlib.suppress(OSError):
        found = re.findall(r"^nameserver\s+(\S+)", Path("/etc/resolv.conf").read_text(errors="replace"), re.MULTILINE)
        return {(server, 53) for server in found}
    return set()


def _inodes(kind: str, address: str) -> set[str]:
    """Return the sockets that wait for others at an address of this machine (proc_net(5))."""
    lines = (line.split() for line in Path(f"/proc/net/{kind}").read_text(errors="replace").splitlines()[1:])
    if kind == "unix":
        return {fields[6] for fields in lines if fields[7:] == [address]}
    states = ("0A",) if kind.startswith("tcp") else ("07", "01")
    return {fields[9] for fields in lines if fields[1].endswith(address) and fields[3] in states}


def _own_inodes() -> set[str]:
    """Return the sockets of the program's processes."""
    found = set()
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found.update(re.findall(r"^socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}")))
    return found
