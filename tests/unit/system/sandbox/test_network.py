"""What a program in the sandbox sends: to its own processes, and to nobody else."""

import os
import socket
import subprocess

import pytest
from local_server import listening
from sandboxed import contents, run, run_python

from memlab.system import deadman
from memlab.system.sandbox import NAMESPACES, NETWORK, OPEN


def test_nothing_leaves_the_sandbox_and_what_was_refused_is_listed(sandbox, project, tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (
        ["init", "-q"],
        ["commit", "-q", "--allow-empty", "-m", "one"],
        ["init", "-q", "--bare", "../hub.git"],
    ):
        subprocess.run([*git, *words], cwd=project, check=True)
    before = contents(tmp_path / "hub.git")
    with listening() as (port, connected):
        run_python(
            sandbox,
            f"""
            import socket, subprocess, urllib.request
            for address in (("127.0.0.1", {port}), ("192.0.2.7", 443), ("hub.example", 443)):
                try:
                    socket.create_connection(address, timeout=5)
                except OSError:
                    pass
            try:
                urllib.request.urlopen("http://127.0.0.1:{port}/", data=b"weights")
            except OSError:
                pass
            assert subprocess.run(["git", "push", "http://127.0.0.1:{port}/hub.git", "HEAD"]).returncode
            subprocess.run(["git", "push", "../hub.git", "HEAD:refs/heads/new"])
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect_ex(("192.0.2.7", 53))
            """,
            project,
        )
    assert connected == []
    assert contents(tmp_path / "hub.git") == before
    refused = {each["what"] for each in sandbox.effects()["refused"]}
    assert {
        f"connection to 127.0.0.1:{port}",
        "connection to 192.0.2.7:443",
        "connection to hub.example:443",
        "connection to 192.0.2.7:53",
    } <= refused


@pytest.mark.parametrize("variables", [{deadman.TOKEN_VARIABLE: "open", NETWORK: OPEN}])
def test_with_an_open_network_a_program_connects_but_changes_no_file(sandbox, project):
    before = contents(project)
    with listening() as (port, connected):
        lines = f"import socket\nsocket.create_connection(('127.0.0.1', {port}))\nopen('new', 'w').close()"
        run_python(sandbox, lines, project)
    assert len(connected) == 1 and contents(project) == before
    assert sandbox.effects()["network"] and sandbox.effects()["refused"] == []


def test_the_processes_of_a_program_connect_to_each_other(sandbox, project):
    seen = run_python(
        sandbox,
        """
        import multiprocessing, os, socket, subprocess, sys
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        assert socket.socket().connect_ex(server.getsockname())
        server.listen()
        client = f"import socket; socket.create_connection(('localhost', {server.getsockname()[1]})).sendall(b'tcp')"
        child = subprocess.Popen([sys.executable, "-c", client], env={})
        print(server.accept()[0].recv(9).decode(), child.wait())
        unix = socket.socket(socket.AF_UNIX)
        unix.bind("server.sock")
        unix.listen()
        other = socket.socket(socket.AF_UNIX)
        other.connect(os.path.abspath("server.sock"))
        with multiprocessing.Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
        """,
        project,
    )
    assert seen.splitlines() == ["tcp 0", "[1, 2]"]
    assert sandbox.effects()["refused"] == []


def test_servers_of_the_machine_are_out_of_reach(sandbox, project):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(project / "daemon.sock"))
        server.listen()
        seen = run_python(
            sandbox, "import socket\nprint(socket.socket(socket.AF_UNIX).connect_ex('daemon.sock'))", project
        )
    assert seen.strip() == "111"  # ECONNREFUSED


RARE_CALLS = r"""
#include <arpa/inet.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <resolv.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

void say(const char* what, bool allowed) { printf("%s %s\n", what, allowed ? "done" : "refused"); }

int main(int, char** arguments) {
  sockaddr_in far{AF_INET, htons(53)};
  inet_pton(AF_INET, "192.0.2.9", &far.sin_addr);
  char word[] = "data";
  iovec data{word, 4};
  mmsghdr messages[2] = {};
  for (auto& each : messages) each.msg_hdr = {&far, sizeof far, &data, 1};
  say("sendmmsg", sendmmsg(socket(AF_INET, SOCK_DGRAM, 0), messages, 2, 0) > 0);

  hostent entry, *found = nullptr;
  char buffer[4096];
  int error;
  gethostbyname_r("first.example", &entry, buffer, sizeof buffer, &found, &error);
  say("gethostbyname_r", found);
  say("gethostbyname2", gethostbyname2("second.example", AF_INET));
  say("res_query", res_query("third.example", 1, 1, (unsigned char*)buffer, sizeof buffer) >= 0);

  sockaddr_un daemon{AF_UNIX, "daemon.sock"};
  int datagram = socket(AF_UNIX, SOCK_DGRAM, 0);
  say("datagram", sendto(datagram, word, 4, 0, (sockaddr*)&daemon, sizeof daemon) > 0);
  msghdr message{&daemon, sizeof daemon, &data, 1};
  say("message", sendmsg(datagram, &message, 0) > 0);
  sockaddr_un own{AF_UNIX, "own.sock"};
  int server = socket(AF_UNIX, SOCK_DGRAM, 0);
  bind(server, (sockaddr*)&own, sizeof own);
  say("own datagram", sendto(datagram, word, 4, 0, (sockaddr*)&own, sizeof own) > 0);

  say("mknodat", mknodat(AT_FDCWD, "pipe", S_IFIFO | 0600, 0) == 0);
  say("mkfifoat", mkfifoat(AT_FDCWD, "pipe2", 0600) == 0);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  char echo[] = "echo", *words[] = {echo, word, nullptr}, *none[] = {nullptr};
  pid_t child;
  say("addopen", posix_spawn(&child, "/bin/echo", &actions, nullptr, words, none) == 0);
  waitpid(child, nullptr, 0);

  char touch[] = "touch", file[] = "touched", second[] = "touched2", *touching[] = {touch, file, nullptr},
       *again[] = {touch, second, nullptr};
  if (!fork()) execveat(AT_FDCWD, "/usr/bin/touch", touching, none, 0), _exit(1);
  if (!fork()) fexecve(open("/usr/bin/touch", O_RDONLY), again, none), _exit(1);
  while (wait(nullptr) > 0) {
  }
  say("execveat", access("touched", F_OK) == 0);
  say("fexecve", access("touched2", F_OK) == 0);
  say("dlopen", dlopen("libof_the_runpath.so", RTLD_NOW));
}
"""


def test_calls_that_few_programs_make_have_no_effect_either(sandbox, project, tmp_path):
    (tmp_path / "rare.cpp").write_text(RARE_CALLS)
    (tmp_path / "lib").mkdir()
    (tmp_path / "empty.cpp").write_text("int nothing;")
    library = tmp_path / "lib" / "libof_the_runpath.so"
    subprocess.run(["g++", "-shared", "-fPIC", tmp_path / "empty.cpp", "-o", library], check=True)
    words = ["-w", "-Wl,--enable-new-dtags", f"-Wl,-rpath,{library.parent}", "-lresolv", "-ldl"]
    subprocess.run(["g++", tmp_path / "rare.cpp", "-o", tmp_path / "rare", *words], check=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(project / "daemon.sock"))
        server.setblocking(False)
        before = set(project.iterdir())
        done = run(sandbox, [str(tmp_path / "rare")], project)
        with pytest.raises(BlockingIOError):
            server.recv(10)
    assert dict(line.rsplit(" ", 1) for line in done.stdout.splitlines()) == {
        **dict.fromkeys(
            ("sendmmsg", "gethostbyname_r", "gethostbyname2", "res_query", "datagram", "message"), "refused"
        ),
        **dict.fromkeys(("own datagram", "mknodat", "mkfifoat", "addopen", "execveat", "fexecve", "dlopen"), "done"),
    }, done.stderr
    assert set(project.iterdir()) == before
    refused = {each["what"] for each in sandbox.effects()["refused"]}
    names = ("192.0.2.9:53", "first.example", "second.example", "third.example")
    assert {f"connection to {name}" for name in names} <= refused


def test_sockets_of_virtual_machines_and_keys_of_the_user_are_refused(sandbox, project):
    printed = run_python(
        sandbox,
        """
        import ctypes, os, socket
        try:
            socket.socket(40, socket.SOCK_STREAM)  # AF_VSOCK
        except OSError as error:
            print(os.strerror(error.errno))
        libc = ctypes.CDLL(None, use_errno=True)
        request_key = 249 if os.uname().machine == "x86_64" else 218
        print(libc.syscall(request_key, b"user", b"memlab", None, 0), os.strerror(ctypes.get_errno()))
        """,
        project,
    )
    assert printed.splitlines() == ["Operation not permitted", "-1 Operation not permitted"]
    assert {each["what"] for each in sandbox.effects()["refused"]} == {"socket", "request_key"}


def test_the_names_of_networks_can_be_asked_for(sandbox, project):
    assert "lo" in run_python(sandbox, "import socket; print(socket.if_nameindex())", project)
    assert sandbox.effects()["refused"] == []


def test_a_socket_mounted_on_a_file_is_hidden(sandbox, protection, project):
    if protection != NAMESPACES or os.geteuid() != 0:
        pytest.skip("only root mounts, and Landlock refuses connections")
    file, server = project / "docker.sock", socket.socket(socket.AF_UNIX)
    server.bind(str(project / "real.sock"))
    server.listen()
    file.touch()
    subprocess.run(["mount", "--bind", project / "real.sock", file], check=True)
    try:
        printed = run(sandbox, ["ls", "-l", str(file)], project).stdout
    finally:
        subprocess.run(["umount", file], check=True)
        server.close()
    assert not printed.startswith("s")
