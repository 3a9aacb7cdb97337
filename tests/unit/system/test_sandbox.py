"""What a program in the sandbox does has no effect outside, with each of the two protections."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest
from local_server import listening

from memlab.system import deadman
from memlab.system.sandbox import INTERCEPTION, NAMESPACES, NETWORK, OPEN, Sandbox, SandboxError


@pytest.fixture
def project(tmp_path):
    """A folder with the results of an earlier training."""
    project = tmp_path / "project"
    for name in ("out", "old", "older"):
        (project / name / "checkpoint-1").mkdir(parents=True)
        (project / name / "checkpoint-1" / "model.bin").write_bytes(bytes(1000))
        (project / name / "config.json").write_text("{}")
    (project / "log.txt").write_text("first\n")
    (project / "latest").symlink_to("out")
    return project


@pytest.fixture(params=[NAMESPACES, INTERCEPTION])
def protection(request):
    return request.param


@pytest.fixture
def variables():
    """Variables of the launch."""
    return {deadman.TOKEN_VARIABLE: uuid.uuid4().hex}


@pytest.fixture
def sandbox(protection, variables, tmp_path, project):
    keep = tmp_path / "run"
    keep.mkdir()
    try:
        with Sandbox(keep, variables, protection) as sandbox:
            yield sandbox
    except SandboxError as error:
        pytest.skip(str(error))


def run(sandbox: Sandbox, words: list[str], folder: Path) -> subprocess.CompletedProcess:
    environment = sandbox.environment({**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    return subprocess.run(sandbox.words(words), cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def run_python(sandbox: Sandbox, lines: str, folder: Path) -> str:
    done = run(sandbox, [sys.executable, "-c", textwrap.dedent(lines)], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(folder: Path) -> dict[str, str | None]:
    """Path -> text, of files and links; ``None`` for a folder."""
    found: dict[str, str | None] = {}
    for each in sorted(folder.rglob("*")):
        name = str(each.relative_to(folder))
        found[name] = os.readlink(each) if each.is_symlink() else None if each.is_dir() else each.read_text()
    return found


def test_what_a_script_deletes_and_writes_stays_in_the_sandbox_and_is_listed(sandbox, project):
    before = contents(project)
    seen = run_python(
        sandbox,
        """
        import os, shutil, subprocess
        shutil.rmtree("out")
        os.system("rm -rf old")
        subprocess.run(["rm", "-rf", "older"], check=True)
        os.makedirs("out/checkpoint-2")
        with open("out/checkpoint-2/model.bin", "wb") as file:
            file.truncate(5_000_000_000)
        with open("log.txt", "a") as log:
            log.write("second")
        os.rename("log.txt", "log.old")
        print(sorted(os.listdir(".")), os.listdir("latest"), os.path.getsize("latest/checkpoint-2/model.bin"))
        print(open("log.old").read())
        """,
        project,
    )
    assert seen.splitlines() == ["['latest', 'log.old', 'out'] ['checkpoint-2'] 5000000000", "first", "second"]
    assert contents(project) == before
    effects = sandbox.effects()
    assert {tuple(each.values()) for each in effects["written"]} == {
        (str(project / "out" / "checkpoint-2"), 1, 5_000_000_000),
        (str(project), 1, len("first\nsecond")),
    }
    assert {tuple(each.values()) for each in effects["deleted"]} == {
        (str(project / "out" / "checkpoint-1"), 1, 1000),
        (str(project / "out"), 1, 2),
        (str(project / "old"), 2, 1002),
        (str(project / "older"), 2, 1002),
        (str(project), 1, 6),
    }


WITHOUT_PRIVILEGE = ["setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search,-fowner"]
"""Words before those of a program of root, for which the permissions of files then hold."""


def test_what_its_owner_may_change_in_spite_of_permissions_stays_in_the_sandbox(sandbox, project):
    def state() -> dict[Path, tuple[int, int]]:
        return {each: (each.lstat().st_mode, each.lstat().st_mtime_ns) for each in project.rglob("*")}

    (project / "out" / "config.json").chmod(0o444)
    for name in ("old", "older"):
        (project / name).chmod(0o555)
    before, texts = state(), contents(project)
    program = """
    import os
    os.chmod("out/config.json", 0o644)
    open("out/config.json", "a").write("1")
    open("old/config.json", "a").write("2")
    os.chmod("older", 0o755)
    open("older/new", "w").write("3")
    os.utime("latest", (0, 0), follow_symlinks=False)
    print(*(open(name).read() for name in ("out/config.json", "old/config.json", "older/new")), os.listdir("older"))
    """
    words = [*(WITHOUT_PRIVILEGE if os.geteuid() == 0 else ()), sys.executable, "-c", textwrap.dedent(program)]
    done = run(sandbox, words, project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{}1 {}2 3 ") and all(name in done.stdout for name in ("new", "checkpoint-1"))
    assert state() == before and contents(project) == texts
    assert {tuple(each.values()) for each in sandbox.effects()["written"]} == {
        (str(project / "out"), 1, 3),
        (str(project / "old"), 1, 3),
        (str(project / "older"), 1, 1),
    }


def test_the_kept_folder_is_really_written(sandbox, project, tmp_path):
    run_python(sandbox, f"open({str(tmp_path / 'run' / 'rank0.json')!r}, 'w').write('kept')", project)
    assert (tmp_path / "run" / "rank0.json").read_text() == "kept"
    assert sandbox.effects()["written"] == []


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
            sandbox,
            "import socket\nprint(socket.socket(socket.AF_UNIX).connect_ex('daemon.sock'))",
            project,
        )
    assert seen.strip() == "111"  # ECONNREFUSED


def test_other_processes_get_no_signal(sandbox, project):
    with subprocess.Popen(["sleep", "60"]) as other:
        done = run(sandbox, ["bash", "-c", f"kill -KILL {other.pid}; sleep 60 & kill $!; wait $!; echo $?"], project)
        assert other.poll() is None
        other.kill()
    assert done.stdout.strip() == str(128 + signal.SIGTERM)


SIGNALS_ITS_GROUP = """
import os, sys
from pathlib import Path
from memlab.system.deadman import guarded
from memlab.system.sandbox import Sandbox
with guarded(os.environ) as environ, Sandbox(Path(sys.argv[1]), environ, sys.argv[2]) as sandbox:
    print(sandbox.run(["sh", "-c", "kill 0"], environ).returncode)
"""


def test_a_program_that_signals_its_process_group_does_not_end_memlab(sandbox, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS_ITS_GROUP, str(tmp_path / "run"), sandbox.protection],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
    )
    assert done.stdout.strip() in (f"{-signal.SIGTERM}", f"{128 + signal.SIGTERM}"), done.stderr


@pytest.mark.parametrize("protection", [NAMESPACES])
def test_not_even_root_changes_settings_of_the_machine(sandbox, project):
    seen = run_python(
        sandbox,
        """
        value = open("/proc/sys/vm/swappiness").read()
        try:
            open("/proc/sys/vm/swappiness", "w").write(value)
        except OSError as error:
            print("refused")
        """,
        project,
    )
    assert seen == "refused\n"


def test_a_program_may_kill_its_child_that_has_ended(sandbox, project):
    lines = """
        import os, time
        child = os.fork() or os._exit(0)
        time.sleep(0.2)
        os.kill(child, 9)
        os.waitpid(child, 0)
    """
    run_python(sandbox, lines, project)


def test_exit_code_and_output_are_those_of_the_program(sandbox, project):
    done = run(sandbox, ["sh", "-c", "echo out; echo err >&2; exit 7"], project)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


OPERATIONS = """
import os, random, shutil, sys
names = random.Random(int(sys.argv[1]))
def path():
    return "/".join(names.choice("abc") for _ in range(names.randint(1, 3)))
done = []
for _ in range(150):
    kind = names.choice("write append mkdir unlink rmtree rename symlink link chmod list in".split())
    first, second = path(), path()
    try:
        if kind in ("write", "append"):
            with open(first, kind[0]) as file:
                file.write(second)
        elif kind == "list":
            done.append(sorted((each.name, each.is_dir(), each.is_symlink()) for each in os.scandir(first)))
        elif kind == "in":
            at = os.open(first, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.mkdir("d", dir_fd=at)
                os.rename("d", "e", src_dir_fd=at, dst_dir_fd=at)
            finally:
                os.close(at)
        elif kind == "rmtree":
            shutil.rmtree(first)
        elif kind in ("rename", "link"):
            if not os.path.isdir(first) or os.path.islink(first):  # folders of the machine are copied, not renamed
                getattr(os, kind)(first, second)
        elif kind == "symlink":
            os.symlink(second, first)
        elif kind == "chmod":
            os.chmod(first, 0o755)
        else:
            getattr(os, kind)(first)
        done.append(kind)
    except OSError as error:
        done.append((kind, error.errno))
    done.append((os.path.exists(first), os.path.realpath(second)[len(os.getcwd()):]))
tree = sorted((folder, sorted(folders), sorted(files)) for folder, folders, files in os.walk("."))
paths = [f"{folder}/{file}" for folder, _, files in tree for file in files]
text = {path: open(path).read() for path in paths if os.path.isfile(path)}
print(done, tree, text)
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_program_sees_its_own_changes_as_if_they_were_real(sandbox, tmp_path, seed):
    def start(name: str) -> Path:
        places, folder = random.Random(seed), tmp_path / name
        folder.mkdir()
        for _ in range(8):
            path = folder.joinpath(*(places.choice("abc") for _ in range(places.randint(1, 3))))
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(str(places.random()))
        return folder

    words = [sys.executable, "-c", OPERATIONS, str(seed)]
    real, folder = start("real"), start("view")
    before = contents(folder)
    expected = subprocess.run(words, cwd=real, capture_output=True, text=True, check=True).stdout
    done = run(sandbox, words, folder)
    assert done.stdout == expected, done.stderr
    assert contents(folder) == before


def running() -> list[bytes]:
    """Return the command lines of all processes of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return found


def test_what_a_program_left_running_ends_with_the_sandbox(sandbox, project):
    done = run(sandbox, ["sh", "-c", "sleep 66 >/dev/null 2>&1 & echo started"], project)
    assert done.stdout == "started\n"
    sandbox.__exit__()
    assert not any(b"sleep\x0066" in command for command in running())


KILLED = """
import os, subprocess, sys
from pathlib import Path
from memlab.system.deadman import guarded, TOKEN_VARIABLE
from memlab.system.sandbox import Sandbox
program = "import subprocess; open('new', 'w'); subprocess.Popen(['sleep', '77']); print('runs', flush=True); input()"
keep, protection = Path(sys.argv[1]), sys.argv[2]
with guarded(os.environ) as environ, Sandbox(keep, environ, protection) as sandbox:
    print(environ[TOKEN_VARIABLE], flush=True)
    subprocess.run(sandbox.words([sys.executable, "-c", program]), env=sandbox.environment(environ))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_after_a_kill_no_process_and_no_scratch_folder_is_left(sandbox, project, tmp_path, number):
    words = [sys.executable, "-c", KILLED, str(tmp_path / "run"), sandbox.protection]
    with subprocess.Popen(
        words,
        cwd=project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as killed:
        token, runs = killed.stdout.readline().strip(), killed.stdout.readline().strip()
        assert runs == "runs" and any(deadman.marked(token))
        killed.send_signal(number)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and (any(deadman.marked(token)) or scratch_of(token)):
            time.sleep(0.1)
    assert list(deadman.marked(token)) == [] and scratch_of(token) == []
    assert not (project / "new").exists()


def scratch_of(token: str) -> list[Path]:
    return [folder for place in deadman.SCRATCH_PLACES for folder in place.glob(f"{deadman.SCRATCH}{token}-*")]


def test_folders_that_the_program_made_unreadable_are_listed_and_removed(sandbox, project):
    run(sandbox, ["sh", "-c", "mkdir -p a/b; echo 1 > a/b/c; chmod 0 a/b; chmod 0500 a"], project)
    assert sandbox.effects()["written"] == [{"folder": str(project / "a"), "files": 1, "bytes": 2}]


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


def test_a_machine_without_shared_memory_has_a_scratch_folder(tmp_path, variables, monkeypatch):
    places = (tmp_path / "scratch", Path("/nowhere/shm"))
    places[0].mkdir()
    monkeypatch.setattr("memlab.system.sandbox.SCRATCH_PLACES", places)
    monkeypatch.setattr(Sandbox, "_works", lambda self, place: False)
    with Sandbox(tmp_path, variables) as sandbox:
        assert sandbox.protection == INTERCEPTION and list(places[0].iterdir())
    monkeypatch.setattr("memlab.system.sandbox.SCRATCH_PLACES", places[1:])
    with pytest.raises(SandboxError, match="a sandbox needs a scratch folder"), Sandbox(tmp_path, variables):
        pass
