"""Processes of a guarded launch end with it, also when memlab is killed."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from memlab.system import deadman
from memlab.system.deadman import control_group, guarded, marked
from memlab.system.sandbox import PROTECTIONS, UNPROTECTED, Sandbox

HOLDS = """
import os, subprocess, sys, time
from memlab.system.deadman import TOKEN_VARIABLE, guarded
with guarded(os.environ) as environ:
    subprocess.Popen(["sleep", "60"], env=environ)
    print(environ[TOKEN_VARIABLE], flush=True)
    time.sleep(60)
"""


def test_an_exception_ends_the_processes():
    with pytest.raises(KeyboardInterrupt), guarded(os.environ) as environ:
        process = subprocess.Popen(["sleep", "60"], env=environ)
        raise KeyboardInterrupt
    assert process.wait(10) == -signal.SIGKILL


def test_the_end_of_a_part_leaves_the_others_and_the_end_of_all_ends_them():
    token = uuid.uuid4().hex
    parts = [
        subprocess.Popen(["sleep", "60"], env={deadman.TOKEN_VARIABLE: f"{token}{part}"}) for part in ("-one", "-two")
    ]
    deadman.kill_marked(f"{token}-one")
    assert parts[0].wait(10) == -signal.SIGKILL and parts[1].poll() is None
    deadman.kill_marked(token)
    assert parts[1].wait(10) == -signal.SIGKILL


def test_the_death_of_memlab_ends_the_processes():
    memlab = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True)
    token = memlab.stdout.readline().strip()
    assert list(marked(token))
    memlab.kill()
    memlab.communicate()
    assert until(lambda: not list(marked(token)))


UNMARKED = """
import ctypes, os, subprocess, sys
subprocess.Popen(["sleep", sys.argv[1]], env={}, start_new_session=True)
if not os.fork():
    os.setsid()
    if not os.fork():
        words = (ctypes.c_char_p * 3)(b"sleep", sys.argv[1].encode(), None)
        number = 59 if os.uname().machine == "x86_64" else 221
        ctypes.CDLL(None).syscall(number, b"/bin/sleep", words, (ctypes.c_char_p * 1)(None))
    os._exit(0)
os.wait()
print("started", flush=True)
if sys.argv[2] == "waits":
    input()
"""
"""A script that starts two processes without variables: one with a session of its own, and a daemon by execve(2)."""

WATCHES = """
import os, subprocess, sys
from pathlib import Path
from memlab.launch.launch_control import LaunchControl
from memlab.launch.process import Launch
from memlab.launch.streams import ToTerminal
from memlab.system.deadman import guarded
from memlab.system.sandbox import Sandbox
words = [sys.executable, "-c", *sys.argv[2:]]
if sys.argv[1] == "measured":
    with Launch(words, dict(os.environ), ToTerminal(Path("log"))) as launch:
        launch.wait(lambda: 60, lambda: None, LaunchControl())
else:
    with guarded(os.environ) as environ, Sandbox(Path("."), environ, sys.argv[1]) as sandbox:
        sandbox.run(words, environ)
"""


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return met


def sleeping(seconds: str) -> int:
    """Count the processes ``sleep seconds``."""
    wanted, found = f"sleep\0{seconds}\0".encode(), 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += path.read_bytes() == wanted
    return found


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "over"])
@pytest.mark.parametrize("kind", ["measured", *PROTECTIONS])
def test_processes_without_variables_end_with_memlab_and_with_its_command(tmp_path, kind, is_killed):
    seconds = str(600 + random.randrange(10**6))
    words = [sys.executable, "-c", WATCHES, kind, UNMARKED, seconds, "waits" if is_killed else "ends"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=environ, cwd=tmp_path, **streams) as memlab:
        if (told := memlab.stdout.readline()) != "started\n":
            pytest.skip(f"no {kind} here: {told}")
        if is_killed:
            assert until(lambda: sleeping(seconds) == 2)
            memlab.kill()
        else:
            assert memlab.wait(30) == 0
    assert until(lambda: not sleeping(seconds))


def test_the_exit_code_of_a_command_that_ends_at_once_arrives(monkeypatch):
    makefile = deadman.socket.socket.makefile

    def late(*arguments, **options):
        time.sleep(0.5)  # both answers are there
        return makefile(*arguments, **options)

    monkeypatch.setattr(deadman.socket.socket, "makefile", late)
    watched = deadman.Watched(["sh", "-c", "exit 7"], os.environ, uuid.uuid4().hex)
    assert watched.wait(10) == 7
    watched.dismiss()


def watched(words: list[str]) -> deadman.Watched:
    return deadman.Watched(words, dict(os.environ), uuid.uuid4().hex, stdin=subprocess.DEVNULL)


MANY_FILES = """
import os, resource
from memlab.system import deadman
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
command = deadman.Watched(["sh", "-c", "exit 7"], os.environ, "many-files")
print(command.wait(60))
command.dismiss()
"""


def test_a_command_of_a_process_with_many_open_files_has_its_exit_code():
    done = subprocess.run([sys.executable, "-c", MANY_FILES], capture_output=True, text=True, timeout=120)
    assert done.stdout == "7\n", done.stderr


def test_memlab_lets_a_deadman_go_that_the_command_has_stopped(monkeypatch):
    monkeypatch.setattr(deadman, "LAST_S", 0.5)
    command = watched([sys.executable, "-c", "import os; os.kill(os.getppid(), 19)"])
    assert until(lambda: not command.processes())
    command.dismiss()
    assert command.deadman.returncode == -signal.SIGKILL
    with contextlib.suppress(FileNotFoundError):  # there are no control groups of version 2
        assert not deadman.group_of(command.token).exists()


def test_without_control_groups_processes_are_found_by_token_and_parent(monkeypatch, tmp_path):
    """A folder in the place of a control group takes any file, and its text names no process."""
    monkeypatch.setattr(deadman, "control_group", lambda: tmp_path)
    token = uuid.uuid4().hex
    (tmp_path / f"memlab-{token}").mkdir()
    (tmp_path / f"memlab-{token}" / "cgroup.procs").write_text("0")
    assert deadman.processes(token) == set()

    def nothing_there() -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(deadman, "control_group", nothing_there)
    assert deadman.processes(token) == set()


def test_a_command_outlives_no_memlab_that_is_killed_before_it_has_read_the_answer():
    ours, theirs = deadman.socket.socketpair()
    token = uuid.uuid4().hex
    words = [sys.executable, "-I", "-S", deadman.__file__, token, "0", str(theirs.fileno())]
    with theirs, ours:
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        variables = {**os.environ, deadman.TOKEN_VARIABLE: token}
        request = {"words": ["sleep", "60"], "variables": variables, "own_session": True}
        ours.sendall(json.dumps(request).encode() + b"\n")
    assert process.wait(20) == 0
    assert not list(marked(token))


@pytest.fixture
def needs_groups():
    try:
        probe = control_group() / f"memlab-{uuid.uuid4().hex}"
        probe.mkdir()
        probe.rmdir()
    except OSError:
        pytest.skip("no control group can be made here")


def test_without_a_deadman_the_next_memlab_ends_processes_without_variables(needs_groups):
    words, seconds, token = [sys.executable, "-c", UNMARKED], str(600 + random.randrange(10**6)), uuid.uuid4().hex
    watched = deadman.Watched([*words, seconds, "ends"], os.environ, token, stdout=subprocess.DEVNULL)
    assert watched.wait(20) == 0
    watched.deadman.kill()
    watched.deadman.wait()
    assert until(lambda: sleeping(seconds) == 2)
    assert deadman.end_marked(token, 0.0) == [] and sleeping(seconds) == 0
    assert not deadman.group_of(token).exists()


def test_a_sandbox_without_its_deadman_ends_processes_without_variables(needs_groups, tmp_path, monkeypatch):
    monkeypatch.setattr(Sandbox, "words", lambda self, words: list(words))  # no wall keeps the script from its parent
    seconds = str(600 + random.randrange(10**6))
    number = 62 if os.uname().machine == "x86_64" else 129
    kills = f"{UNMARKED}\nimport time\ntime.sleep(0.5)\nctypes.CDLL(None).syscall({number}, os.getppid(), 9)\ninput()"
    with guarded(os.environ) as environ, Sandbox(tmp_path, environ, UNPROTECTED) as sandbox:
        done = sandbox.run([sys.executable, "-c", kills, seconds, "ends"], environ, stdin=subprocess.PIPE)
        assert done.returncode == -signal.SIGKILL and sleeping(seconds) == 0


def test_a_folder_is_removed_whatever_its_permissions_and_the_folder_around_it_stays_as_it_is(tmp_path):
    inside = tmp_path / "scratch" / "work" / "work"
    inside.mkdir(parents=True)
    (inside.parent / "file").touch()
    (inside.parent / "link").symlink_to(tmp_path)
    inside.chmod(0)
    inside.parent.chmod(0o500)
    mode = tmp_path.stat().st_mode
    for _ in range(2):  # the second time, it is not there any more
        deadman.remove_folder(tmp_path / "scratch")
        assert not (tmp_path / "scratch").exists() and tmp_path.stat().st_mode == mode


def test_a_folder_is_removed_however_deep_it_is_and_whatever_its_permissions(tmp_path):
    deep = """
import os
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
open("file", "w").close()
os.chmod(".", 0o111)
"""
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / "empty").mkdir(mode=0)
    subprocess.run([sys.executable, "-c", deep], cwd=folder, check=True)
    deadman.remove_folder(folder)
    assert list(tmp_path.iterdir()) == []
