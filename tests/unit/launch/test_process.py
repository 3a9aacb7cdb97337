"""No process of a launch survives it, whatever happens. Stand-ins for deepspeed, but real processes."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from memlab.launch import process
from memlab.launch.launch_control import LaunchControl
from memlab.launch.process import TERMINATE_S, Launch
from memlab.launch.streams import ToLog
from memlab.system import deadman
from memlab.system.deadman import marked, marked_by, variables_of

ROOT = Path(__file__).parents[3]
FOREVER = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
RANK = [sys.executable, "-c", FOREVER, "memlab.training"]  # recognised as a rank by its command line


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def starts(*children: list[str], then: str = FOREVER) -> list[str]:
    """A launcher whose children are each in a session of their own, as DeepSpeed's are not, but a user's may be."""
    begin = f"import os, subprocess\nfor words in {children!r}: subprocess.Popen(words, start_new_session=True)\n"
    return python(begin + then)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return met


def never() -> None:
    return None


NO_STOP = LaunchControl()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(process, "POLL_S", 0.02)
    monkeypatch.setattr(process, "TERMINATE_S", 0.3)
    monkeypatch.setattr(process, "STACKS_S", 0.2)


@pytest.fixture
def launch(tmp_path):
    """``launch(command)``; at the end of the test nothing of it may be alive."""
    tokens = []

    def start(command: list[str]) -> Launch:
        started = Launch(command, dict(os.environ), ToLog(tmp_path / "launcher.log"))
        tokens.append(started.token)
        return started

    yield start
    assert tokens
    for token in tokens:
        assert list(marked(token)) == []


@pytest.mark.parametrize("code", [0, 3])
def test_a_launcher_that_exits(launch, tmp_path, code):
    with launch(python(f"print('hello'); raise SystemExit({code})")) as started:
        ended = started.wait(lambda: 10, never, NO_STOP)
    assert (ended.how, ended.returncode, ended.outlived_by_ranks) == ("exited", code, False)
    assert (tmp_path / "launcher.log").read_text() == "hello\n"


def test_a_timeout_ends_everything(launch):
    with launch(starts(RANK, RANK)) as started:
        assert until(lambda: len(started.ranks()) == 2)
        ended = started.wait(lambda: 0.0, never, NO_STOP)
    assert (ended.how, ended.returncode) == ("timeout", None)


def test_a_timeout_asks_the_ranks_for_their_stacks_before_it_ends_them(launch, tmp_path):
    answer = tmp_path / "stacks"
    code = (
        "import pathlib, signal, time\n"
        f"signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path({str(answer)!r}).write_text('here'))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "time.sleep(60)"
    )
    with launch(starts([*python(code), "memlab.training"])) as started:
        assert until((tmp_path / "ready").exists)
        started.wait(lambda: 0.0, never, NO_STOP)
    assert answer.read_text() == "here"


def test_the_deadline_may_move(launch):
    began = time.monotonic()
    with launch(python("import time; time.sleep(0.3)")) as started:
        ended = started.wait(lambda: 0.1 + (time.monotonic() - began), never, NO_STOP)
    assert ended.how == "exited"


def test_at_the_time_limit_the_ranks_that_are_stopped_are_named(launch):
    numbered = "import os\nos.environ['RANK'] = '{}'\nos.execv({!r}, {!r})"
    ranks = [python(numbered.format(rank, RANK[0], RANK)) for rank in (0, 1)]
    with launch(starts(*ranks)) as started:
        assert until(lambda: len(started.ranks()) == 2)
        pids = {process._rank_of(pid): pid for pid in started.ranks()}
        os.kill(pids[1], signal.SIGSTOP)
        ended = started.wait(lambda: 0.0, never, NO_STOP)
    assert (ended.how, ended.stopped) == ("timeout", (1,))


def test_a_killed_launcher_is_seen_though_its_ranks_live_on(launch):
    with launch(starts(RANK, RANK)) as started:
        assert until(lambda: len(started.ranks()) == 2)
        started._process.send_signal(signal.SIGKILL)
        ended = started.wait(lambda: 10, never, NO_STOP)
        assert len(started.ranks()) == 2
    assert (ended.how, ended.returncode, ended.outlived_by_ranks) == ("exited", -signal.SIGKILL, True)


def test_other_children_are_no_ranks_but_are_ended_too(launch):
    with launch(starts(python(FOREVER), then="")) as started:
        ended = started.wait(lambda: 10, never, NO_STOP)
        assert until(lambda: len(list(marked(started.token))) == 1)
    assert not ended.outlived_by_ranks


@pytest.mark.parametrize(
    "command", [python(STUBBORN), starts(python(STUBBORN)), starts(python(STUBBORN), then=STUBBORN)]
)
def test_who_ignores_sigterm_is_killed(launch, command):
    with launch(command) as started:
        wanted = 2 if "subprocess" in command[2] else 1
        assert until(lambda: len(list(marked(started.token))) == wanted)
        time.sleep(0.1)  # until SIGTERM is ignored


def test_a_launcher_may_clean_up_at_sigterm(launch, tmp_path):
    done, ready = tmp_path / "done", tmp_path / "ready"
    code = (
        "import pathlib, signal, sys, time\n"
        f"def end(*_): pathlib.Path({str(done)!r}).touch(); sys.exit()\n"
        f"signal.signal(signal.SIGTERM, end)\npathlib.Path({str(ready)!r}).touch()\ntime.sleep(60)"
    )
    with launch(python(code)):
        assert until(ready.exists)
    assert done.exists()


def test_an_exception_in_the_block_ends_everything_and_goes_on(launch):
    with pytest.raises(KeyboardInterrupt), launch(starts(RANK)) as started:
        assert until(lambda: bool(started.ranks()))
        raise KeyboardInterrupt


def test_ranks_that_do_not_leave_when_all_results_are_there_are_ended(launch):
    with launch(starts(RANK)) as started:
        ended = started.wait(lambda: 10, lambda: 0.1, NO_STOP)
    assert (ended.how, ended.returncode) == ("exited", 0)
    assert ended.seconds < 5


def test_results_do_not_cut_short_a_launcher_that_leaves_by_itself(launch):
    with launch(python("import time; time.sleep(0.3); raise SystemExit(4)")) as started:
        assert started.wait(lambda: 10, lambda: 5.0, NO_STOP).returncode == 4


def test_a_stop_from_another_thread_ends_the_launch(launch):
    stop = threading.Event()
    with launch(starts(RANK)) as started:
        assert until(lambda: bool(started.ranks()))
        threading.Timer(0.1, stop.set).start()
        ended = started.wait(lambda: 10, never, LaunchControl(stop))
    assert (ended.how, ended.returncode) == ("interrupted", None)


def test_two_launches_do_not_end_each_other(launch):
    with launch(python(FOREVER)) as other:
        with launch(python(FOREVER)) as started:
            pass
        assert list(marked(started.token)) == []
        assert len(list(marked(other.token))) == 1


def test_a_process_is_known_by_its_variables_from_the_moment_it_is_started(tmp_path):
    """Popen returns while the process is still inside exec(2), with no environment to show."""
    fields = "R 1 2 3 0 -1 {flags} " + "0 " * 41 + "{env_end} 0"
    stat, environ = tmp_path / "stat", tmp_path / "environ"
    stat.write_text("7 (a name) " + fields.format(flags=0x400000, env_end=0))
    environ.write_bytes(b"")

    def goes_on():
        environ.write_bytes(b"A=b\0")
        after = tmp_path / "after"
        after.write_text("7 (a name) " + fields.format(flags=0x400000, env_end=4))
        after.replace(stat)  # at once, as in /proc

    timer = threading.Timer(0.1, goes_on)
    timer.start()
    assert variables_of(tmp_path) == [b"A=b", b""]
    timer.join()


def test_who_is_started_is_found_at_once():
    for _ in range(30):
        with subprocess.Popen(["sleep", "60"], env={"MEMLAB_TEST_FOUND": "abc"}) as child:
            try:
                assert variables_of(Path(f"/proc/{child.pid}")) == [b"MEMLAB_TEST_FOUND=abc", b""]
            finally:
                child.kill()


@pytest.mark.parametrize("flags", [0x00200000, 0x00000004])
def test_kernel_threads_and_those_on_their_way_out_are_not_waited_for(tmp_path, monkeypatch, flags):
    monkeypatch.setattr(deadman, "EXEC_S", 60.0)
    rest = f") name) I 1 2 3 0 -1 {flags} " + "0 " * 41 + "0 0"
    (tmp_path / "stat").write_bytes(b"7 (a name that is cut within a letter \xc3" + rest.encode())
    (tmp_path / "environ").write_bytes(b"")
    assert variables_of(tmp_path) == [b""]


def test_a_launch_that_is_given_up_at_once_leaves_nothing(tmp_path):
    for _ in range(10):
        with Launch(["sleep", "60"], {}, ToLog(tmp_path / "log"), sigterm=False) as started:
            pass
        assert (started.survivors, started._process.returncode) == ([], -signal.SIGKILL)


def test_a_process_without_any_variable_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(deadman, "EXEC_S", 60.0)
    with subprocess.Popen(["sleep", "60"], env={}) as child:
        try:
            assert list(marked_by("MEMLAB_TEST_NOBODY", "abc")) == []
        finally:
            child.kill()


def test_the_marks_are_whole_words():
    with subprocess.Popen(["sleep", "60"], env={"MEMLAB_TEST_WORDS": "abc"}) as child:
        try:
            assert list(marked_by("MEMLAB_TEST_WORDS", "abc")) == [child.pid]
            assert list(marked_by("MEMLAB_TEST_WORDS", "ab")) == list(marked_by("LAB_TEST_WORDS", "abc")) == []
        finally:
            child.kill()


def test_who_cannot_be_killed_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    """No test can make a process uninterruptible; a signal that never comes looks the same."""
    monkeypatch.setattr(process.deadman, "KILL_S", 0.2)
    kill = os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    monkeypatch.setattr(os, "killpg", lambda group, number: None)
    began = time.monotonic()
    started = Launch(python(FOREVER), dict(os.environ), ToLog(tmp_path / "log"))
    try:
        assert until(lambda: list(marked(started.token)) == [started._process.pid])
        with started:
            pass
        assert started.survivors == [started._process.pid]
        assert time.monotonic() - began < 10
    finally:
        kill(started._process.pid, signal.SIGKILL)
        started._process.wait()
        assert deadman.end_marked(started.token, 0.0) == []


PARENT = """
import os, sys
from pathlib import Path
from memlab.launch.launch_control import LaunchControl
from memlab.launch.process import Launch
from memlab.launch.streams import ToLog
command = [sys.executable, "-c", sys.argv[1]]
with Launch(command, dict(os.environ), ToLog(Path(sys.argv[2]))) as launch:
    print(launch.token, flush=True)
    launch.wait(lambda: 60, lambda: None, LaunchControl())
"""


@pytest.mark.parametrize("child", [FOREVER, STUBBORN, starts(python(STUBBORN), then=STUBBORN)[2]])
def test_when_memlab_itself_is_killed_nothing_survives(tmp_path, child):
    parent = subprocess.Popen(
        python(PARENT, child, str(tmp_path / "log")),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with parent:
        token = parent.stdout.readline().strip()
        wanted = 2 if "subprocess" in child else 1
        assert until(lambda: len(list(marked(token))) == wanted)
        os.killpg(parent.pid, signal.SIGKILL)  # its whole group: the watcher must not be in it
    assert until(lambda: not list(marked(token)), seconds=2 * TERMINATE_S)  # it is told to end before it is killed


def test_the_watcher_leaves_when_the_launch_is_over(launch):
    with launch(python("")) as started:
        started.wait(lambda: 10, never, NO_STOP)
    assert started._process.deadman.returncode == 0


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def test_a_command_that_does_not_exist_leaves_no_watcher_behind(tmp_path):
    before = children()
    with pytest.raises(FileNotFoundError):
        Launch([str(tmp_path / "nothing")], {}, ToLog(tmp_path / "log"))
    assert children() == before


def test_ctrl_c_while_a_launch_is_started_leaves_no_process(monkeypatch, tmp_path):
    token = uuid.uuid4().hex

    makefile = deadman.socket.socket.makefile

    class Answers:
        def __init__(self, *arguments: object, **options: object):
            self.file = makefile(*arguments, **options)  # as long as it is open, its socket is

        def readline(self) -> bytes:
            assert until(lambda: any(marked(token)))
            raise KeyboardInterrupt

    monkeypatch.setattr(deadman.socket.socket, "makefile", lambda *some, **options: Answers(*some, **options))
    with pytest.raises(KeyboardInterrupt):
        Launch(python(FOREVER), dict(os.environ), ToLog(tmp_path / "log"), token)
    assert not any(marked(token))


def test_ctrl_c_while_a_launch_is_ended_leaves_no_process(monkeypatch, launch):
    begun, stop = launch(python(FOREVER)), Launch.stop

    def interrupted_once(self):
        monkeypatch.setattr(Launch, "stop", stop)
        raise KeyboardInterrupt

    monkeypatch.setattr(Launch, "stop", interrupted_once)
    with pytest.raises(KeyboardInterrupt), begun:
        assert until(lambda: any(marked(begun.token)))
    assert not any(marked(begun.token))
