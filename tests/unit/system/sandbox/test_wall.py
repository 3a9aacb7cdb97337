"""Programs that call the kernel themselves: Landlock and the filter of calls refuse what namespaces would keep."""

import ctypes
import socket
import subprocess
from pathlib import Path

import pytest
from sandboxed import run, state

from memlab.system.sandbox import LANDLOCK, wall

pytestmark = pytest.mark.parametrize("protection", [LANDLOCK], indirect=True)

ATTACKS = Path(__file__).with_name("attacks.cpp")

LISTED = [
    "openat",
    "mkdirat",
    "mknodat",
    "symlinkat",
    "linkat",
    "renameat2",
    "unlinkat",
    "truncate",
    "fchmodat",
    "fchmod",
    "fchownat",
    "fchown",
    "utimensat",
    "setxattr",
    "fsetxattr",
    "ioctl",
    "kill",
    "tgkill",
    "rt_sigqueueinfo",
    "pidfd_send_signal",
    "socket",
    "shmat",
    "prlimit64",
    "setpriority",
    "sched_setaffinity",
    "mount",
    "unshare",
]
"""Calls that are listed by their names."""
CONNECTIONS = ["connect", "sendto", "sendmsg", "sendmmsg", "abstract", "daemon"]
OTHERS = ["ptrace", "process_vm_writev", "io_uring_setup", "dlmopen"]

PRIVATE, REMOVE, DETACHED = 0, 0, 0o600
"""Arguments of shmget(2) and shmctl(2)."""


@pytest.fixture(scope="module", params=["-static", "-ldl"], ids=["static", "dynamic"])
def attacks(request, tmp_path_factory) -> str:
    program = tmp_path_factory.mktemp("attacks") / "attacks"
    done = subprocess.run(["g++", "-w", ATTACKS, "-o", program, request.param], capture_output=True, text=True)
    if "cannot find" in done.stderr:
        pytest.skip("no static C library is installed")
    assert done.returncode == 0, done.stderr
    return str(program)


def lowered(monkeypatch, abi: int) -> None:
    if wall.landlock_abi() < abi:
        pytest.skip(f"this kernel has no ABI {abi} of Landlock")
    monkeypatch.setattr(wall, "landlock_abi", lambda: abi)


@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6, 7])
def test_no_system_call_changes_anything_outside_whatever_landlock_knows(sandbox, project, monkeypatch, attacks, abi):
    lowered(monkeypatch, abi)
    library = ctypes.CDLL(None)
    memory = library.shmget(PRIVATE, 4096, DETACHED)
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as daemon,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        udp.bind(tcp.getsockname())
        for server, name in ((abstract, "\0memlab-wall-test"), (daemon, str(project / "daemon.sock"))):
            server.bind(name)
            server.listen()
        before, text = state(project), (project / "log.txt").read_bytes()
        words = [attacks, "log.txt", str(other.pid), str(memory), str(tcp.getsockname()[1])]
        done = run(sandbox, words, project)
        for server in (tcp, udp, abstract, daemon):
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.recv(9) if server is udp else server.accept()
        assert other.poll() is None
        other.kill()
        port = tcp.getsockname()[1]
    library.shmctl(memory, REMOVE, None)
    assert set(done.stdout.split()) == {*LISTED, *CONNECTIONS, *OTHERS}, done.stderr
    assert state(project) == before and (project / "log.txt").read_bytes() == text
    refused = [each["what"] for each in sandbox.effects()["refused"]]
    assert {each.split()[0].rstrip(":") for each in refused} >= {*LISTED, "connection"}
    named = {f"127.0.0.1:{port}", "@memlab-wall-test", str(project / "daemon.sock")}
    assert {each.removeprefix("connection to ") for each in refused if each.startswith("connection")} == named


RACE = """
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static sockaddr_in address{AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
static volatile int own, other;
static void* change(void*) {
  for (;;) address.sin_port = own, address.sin_port = other;
}

int main(int, char** words) {
  int server = socket(AF_INET, SOCK_STREAM, 0), reached[2] = {};
  sockaddr_in mine = address, peer;
  socklen_t size = sizeof mine;
  bind(server, (sockaddr*)&mine, size);
  listen(server, 1000);
  getsockname(server, (sockaddr*)&mine, &size);
  own = mine.sin_port, other = htons(atoi(words[1]));
  pthread_t thread;
  pthread_create(&thread, nullptr, change, nullptr);
  for (int times = 0; times < 200; times++) {
    int client = socket(AF_INET, SOCK_STREAM, 0);
    if (syscall(SYS_connect, client, &address, sizeof address)) continue;
    getpeername(client, (sockaddr*)&peer, &size);
    reached[peer.sin_port == other]++;
  }
  printf("%d %d", reached[0], reached[1]);
  fflush(stdout);
  _exit(0);
}
"""


def test_a_second_thread_cannot_change_an_address_after_the_check(sandbox, project, tmp_path):
    (tmp_path / "race.cpp").write_text(RACE)
    subprocess.run(["g++", "-w", "-pthread", tmp_path / "race.cpp", "-o", tmp_path / "race"], check=True)
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as outside:
        done = run(sandbox, [str(tmp_path / "race"), str(outside.getsockname()[1])], project)
    own, others = map(int, done.stdout.split())
    assert own > 0 and others == 0
    assert sandbox.effects()["refused"]
