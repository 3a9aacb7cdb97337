"""System calls that the kernel hands to memlab or refuses, and the filter that makes it so (seccomp(2))."""

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from memlab.system.sandbox.namespaces import call

IS_X86 = os.uname().machine == "x86_64"


class Call(NamedTuple):
    """The number of a call on this machine, and the arguments with paths (``PATHS``)."""

    number: int
    where: str


def _calls(text: str) -> dict[str, Call]:
    """Read lines of a call's name, its number on x86-64, its number on AArch64 (- is none), and its paths."""
    lines = ([*line.split(), ""] for line in text.replace(",", "\n").splitlines())
    found = {name: ((x86 if IS_X86 else arm), where) for name, x86, arm, where, *_ in lines}
    return {name: Call(int(number), where) for name, (number, where) in found.items() if number != "-"}


PATHS = _calls(
    """open 2 - h0, openat 257 56 01, openat2 437 437 01, creat 85 - h0, mkdir 83 - h0, mkdirat 258 34 01
    mknod 133 - h0, mknodat 259 33 01, symlink 88 - h1, symlinkat 266 36 12, link 86 - h1, linkat 265 37 23
    rename 82 - h0/h1, renameat 264 38 01/23, renameat2 316 276 01/23, unlink 87 - h0, unlinkat 263 35 01
    rmdir 84 - h0"""
)
"""Landlock refuses these outside of the program's folders. They are filtered only to list what was refused. 01: the
path of argument 1 starts in the folder of argument 0; h0: that of argument 0 starts in the working folder."""
ATTRIBUTES = _calls(
    """chmod 90 - h0, fchmod 91 52 0, fchmodat 268 53 01, fchmodat2 452 452 013, chown 92 - h0, lchown 94 - h0l
    fchown 93 55 0, fchownat 260 54 014, utimensat 280 88 013, setxattr 188 5 h0, lsetxattr 189 6 h0l
    fsetxattr 190 7 0, removexattr 197 14 h0, lremovexattr 198 15 h0l, fremovexattr 199 16 0, truncate 76 45 h0"""
)
"""What Landlock does not know, and truncate(2), which it knows from its ABI 3 on. 0: an open file; 013: argument 3 has
flags of AT_*; l: the call does not follow links."""
PROCESSES = _calls(
    """kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240
    pidfd_send_signal 424 424, prlimit64 302 261, setpriority 141 140, ioprio_set 251 30, sched_setaffinity 203 122
    sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274, migrate_pages 256 238
    move_pages 279 239"""
)
ADDRESSES = _calls("connect 42 203, sendto 44 206, sendmsg 46 211, sendmmsg 307 269")
REFUSED = _calls(
    """mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428, move_mount 429 429
    fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442, open_tree_attr 467 467
    setns 308 268, unshare 272 97, clone 56 220, open_by_handle_at 304 265, socket 41 198
    shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193
    semctl 66 191, semtimedop 220 192, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180
    mq_unlink 241 181, ioctl 16 29, setxattrat 463 463, removexattrat 466 466, file_setattr 469 469, add_key 248 217
    keyctl 250 219, request_key 249 218, bpf 321 280, perf_event_open 298 241, fcntl 72 25"""
)
"""Mounts and namespaces; sockets below TCP and UDP; what System V and POSIX share between
all processes; attributes by newer calls; the user's keys; programs in the kernel."""
BESIDE_NAMESPACES = {name: REFUSED[name] for name in ("socket", "ioctl", "add_key", "keyctl", "request_key")}
"""Calls that namespaces do not restrict: for sockets of virtual machines, for terminals and for the user's keys."""
CALLS = {**PATHS, **ATTRIBUTES, **PROCESSES, **ADDRESSES, **REFUSED}


class Condition(NamedTuple):
    """The bits ``mask`` of an argument are one of ``values``, or not 0 where there are none."""

    argument: int
    mask: int
    values: Sequence[int] = ()


ALL = 0xFFFFFFFF
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
NEW_NAMESPACES = 0x7E020000
"""The flags of clone(2) that make namespaces."""
RAW_SOCKETS = (3, 10)
FAMILIES = tuple(family for family in range(3, 64) if family not in (10, 16))
"""All but Unix, IPv4, IPv6 and netlink: raw packets, Bluetooth, virtual machines and others (socket(2))."""
PROTOCOLS = (33, 132, 136, 262)
"""DCCP, SCTP, UDP-Lite, MPTCP (linux/in.h)."""
SUBVOLUMES = tuple(0x50009400 + number for number in (1, 14, 15, 23, 24, 63))
CONTROLS = (0x40086602, 0x401C5820, 0x40087602, 0x40086604, 0x5412, 0x541C, 0x8901, 0x8902, *SUBVOLUMES)
"""FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION and ext4's; TIOCSTI and TIOCLINUX, which type into a terminal;
FIOSETOWN and SIOCSPGRP, which send signals; those that make and remove subvolumes of btrfs."""
SIGNAL_OWNERS = (8, 15)
"""F_SETOWN and F_SETOWN_EX of fcntl(2): the kernel then sends signals to another process."""

CONDITIONS = {
    "open": [Condition(1, WRITES)],
    "openat": [Condition(2, WRITES)],
    "kill": [Condition(1, ALL)],  # signal 0 only asks whether a process is there
    "tkill": [Condition(1, ALL)],
    "tgkill": [Condition(2, ALL)],
    **{name: [Condition(0, ALL)] for name in PROCESSES if name.startswith(("prlimit", "sched"))},  # 0: the caller
    "setpriority": [Condition(0, ALL), Condition(1, ALL)],
    "sendto": [Condition(5, ALL)],  # with an address
    "unshare": [Condition(0, NEW_NAMESPACES)],
    "clone": [Condition(0, NEW_NAMESPACES)],
    "socket": [Condition(1, 0xF, RAW_SOCKETS), Condition(0, ALL, FAMILIES), Condition(2, ALL, PROTOCOLS)],
    "ioctl": [Condition(1, ALL, CONTROLS)],
    "fcntl": [Condition(1, ALL, SIGNAL_OWNERS)],
}
"""The other calls are filtered whatever their arguments."""

MISSING = _calls(
    """clone3 435 435, io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, utime 132 -
    utimes 235 -, futimesat 261 -"""
)
"""The kernel seems to lack clone3, whose flags lie in memory, which no filter reads; io_uring, whose calls pass by all
filters; and the older calls for times. Libraries then make other calls."""

# linux/seccomp.h, linux/audit.h, linux/filter.h, asm/unistd.h
SYS_SECCOMP = 317 if IS_X86 else 277
ARCHITECTURE = 0xC000003E if IS_X86 else 0xC00000B7
SET_FILTER, NEW_LISTENER = 1, 1 << 3
ALLOW, NOTIFY, FAIL = 0x7FFF0000, 0x7FC00000, 0x00050000
LOAD, AND, EQUALS, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
OTHER_TABLE = 0x40000000
"""Numbers from here on are those of the x32 table."""


def system_call(number: int, *arguments: object) -> int:
    """Make a system call; numbers are whole registers. Raises :class:`OSError`."""
    return call("syscall", *(ctypes.c_long(each) if isinstance(each, int) else each for each in (number, *arguments)))


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _filter_of(calls: Mapping[str, Call], missing: Mapping[str, Call]) -> bytes:
    """Return the program for the kernel (BPF) that hands over ``calls``, and knows no ``missing`` ones."""
    no_call, yes = _instruction(RETURN, FAIL | errno.ENOSYS), _instruction(RETURN, NOTIFY)
    program = [_instruction(LOAD, 4), _instruction(EQUALS, ARCHITECTURE, 1), no_call, _instruction(LOAD, 0)]
    program += [_instruction(AT_LEAST, OTHER_TABLE, 0, 1), no_call]
    for number, _ in missing.values():
        program += [_instruction(EQUALS, number, 0, 1), no_call]
    for name, (number, _) in calls.items():
        body = []
        for argument, mask, values in CONDITIONS.get(name, ()):
            body += [_instruction(LOAD, 16 + 8 * argument), _instruction(AND, mask)]
            for value in values:
                body += [_instruction(EQUALS, value, 0, 1), yes]
            if not values:
                body += [_instruction(EQUALS, 0, 1), yes]
        body.append(_instruction(RETURN, ALLOW) if body else yes)
        program += [_instruction(EQUALS, number, 0, len(body)), *body]
    return b"".join([*program, _instruction(RETURN, ALLOW)])


def install(calls: Mapping[str, Call], missing: Mapping[str, Call]) -> int:
    """Filter these calls of this process and of what it starts. Returns the descriptor that they are handed to. Raises
    :class:`OSError`, also if another program has such a filter around this process."""
    program = _filter_of(calls, missing)
    code = ctypes.create_string_buffer(program)
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    return system_call(SYS_SECCOMP, SET_FILTER, NEW_LISTENER, head)
