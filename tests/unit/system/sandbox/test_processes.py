"""Processes of a program in the sandbox: what they can do to others, and what is left of them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandboxed import run, run_python

from memlab.system import deadman
from memlab.system.sandbox import NAMESPACES


def test_exit_code_and_output_are_those_of_the_program(sandbox, project):
    done = run(sandbox, ["sh", "-c", "echo out; echo err >&2; exit 7"], project)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


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
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
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
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
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
