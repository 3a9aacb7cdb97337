"""``memlab measure`` around a command: real processes, without torch. A stand-in writes the files of a rank."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from memlab.core.errors import FolderError
from memlab.core.record import RankResult
from memlab.launch.outcome import NO_STEP, NOT_ATTACHED
from memlab.launch.user_command import supervise
from memlab.launch.user_command.measure import CommandNotFound, check_program, measure
from memlab.meters import install
from memlab.meters.options import MeterOptions
from memlab.runs.folder import RunFolder
from memlab.system.deadman import marked

ROOT = Path(__file__).parents[4]
TOKEN = "hf_" + "a" * 30

RANK = {
    **RankResult(rank=0, device="cpu", device_name="CPU", memory_source="host").to_json(),
    "host_peak_bytes": 2**30,
    "warmup_seconds": [2.0],
    "step_seconds": [0.5, 0.25],
    "timing": {"train_s": 2.75},
    "runtime": {},
    "attached": {"world_size": 1, "phases": {}, "ended": "finished", "steps": 3, "environment": {"NOTE": TOKEN}},
}
ROWS = [
    {"step": step, "samples": 2, "tokens": 64, "padded_length": 32, "largest_micro_batch": 2, "micro_batches": 1}
    for step in (1, 2, 3)
]
STAND_IN = f"""
import json, os, pathlib, sys, time
folder = pathlib.Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).parent
rank, rows = json.loads({json.dumps(RANK)!r}), json.loads({json.dumps(ROWS)!r})
(folder / ".attach" / "loaded").touch()
(folder / "rank0.steps.jsonl").write_text("".join(json.dumps(row) + chr(10) for row in rows))
def leave(**changes):
    (folder / "rank0.json").write_text(json.dumps({{**rank, **changes}}))
"""


def python(code: str, *flags: str) -> list[str]:
    return [sys.executable, *flags, "-c", code]


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(supervise, "LEAVE_S", 0.5)


def memlab(*words: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "memlab", "measure", *words], cwd=ROOT, **options)


def test_a_command_becomes_an_ordinary_run_folder(folder):
    record = measure(python(STAND_IN + "leave()"), folder, MeterOptions(steps=3))
    assert (record.status, record.command["exit_code"]) == ("ok", 0)
    assert folder.read_record().summary == record.summary
    assert folder.read_plan().config.training.loop == "command"
    assert (record.config.batch.micro, record.config.seq_len.tokens) == (2, 32)
    assert record.summary["tokens_per_second"] == pytest.approx(2 * 64 / 0.75)
    assert [row["tokens"] for row in record.steps["rows"]] == [64, 64, 64]
    assert not (folder.path / install.FOLDER).exists()


def test_what_was_not_found_out_is_absent_and_named(folder):
    record = measure(python(STAND_IN + "leave()"), folder)
    assert {"model", "zero_stage", "optimizer", "data"} <= set(record.unknown_config)
    assert (
        not {"model", "zero_stage", "optimizer", "data"}
        & json.loads((folder.path / "record.json").read_text())["config"].keys()
    )
    assert "zero" not in record.run_id


def test_its_exit_code_is_passed_on(folder):
    with memlab("--output", str(folder), "--", *python("raise SystemExit(3)"), stderr=subprocess.DEVNULL) as started:
        pass
    record = folder.read_record()
    assert started.returncode == 3
    assert record.status == "failed"
    assert record.reason == f"the command ended with exit code 3; {NOT_ATTACHED}"


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_a_python_that_ignores_the_path_ends_as_not_attached(folder, flag):
    record = measure(python("pass", flag), folder)
    assert (record.status, record.reason) == ("failed", NOT_ATTACHED)


def test_a_command_without_an_optimizer_has_no_step(folder):
    record = measure(python(STAND_IN), folder)
    assert (record.status, record.reason) == ("failed", NO_STEP)


def test_an_out_of_memory_says_where_and_how_much(folder):
    oom = '{"phase": "forward", "step": 2, "where": "train.py:7", "requested_bytes": 1024}'
    code = f'leave(status="gpu_oom", reason="no memory", oom=json.loads({oom!r})); sys.exit(1)'
    record = measure(python(STAND_IN + code), folder)
    assert (record.status, record.reason) == ("gpu_oom", "rank 0 in forward, step 2, at train.py:7: no memory")
    assert record.ranks[0]["oom"]["requested_bytes"] == 1024


def test_the_rank_that_broke_is_named_rather_than_one_that_lost_its_connection(folder):
    lost = (
        'two = {**rank["attached"], "world_size": 2}\n'
        'leave(status="infra", reason="Connection closed by peer", attached=two)\n'
        '(folder / "rank1.json").write_text(json.dumps({**rank, "rank": 1, "attached": two, "status": STATUS, '
        '"reason": "it broke"}))\nsys.exit(1)'
    )
    record = measure(python(STAND_IN + lost.replace("STATUS", "'failed'")), folder)
    assert (record.status, record.reason) == ("failed", "rank 1: it broke")
    record = measure(python(STAND_IN + lost.replace("STATUS", "'interrupted'")), folder, force=True)
    assert record.status == "failed"
    assert "ranks [1] died without a word" in record.reason and "rank 0: Connection closed by peer" in record.reason
    record = measure(python(STAND_IN + lost.replace("STATUS", "'infra'")), folder, force=True)
    assert record.status == "infra"


def test_a_timeout_ends_every_process_and_says_where(folder, tmp_path):
    at = '{"phase": "backward", "step": 5, "where": "train.py:9"}'
    code = (
        f'leave(status="interrupted", attached={{**rank["attached"], "at": json.loads({at!r})}})\n'
        "import subprocess; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'token')!r}).write_text(os.environ['MEMLAB_LAUNCH'])\ntime.sleep(60)"
    )
    record = measure(python(STAND_IN + code), folder, timeout_s=2)
    assert record.status == "timeout"
    assert record.reason.endswith("rank 0 was last seen in backward, step 5, train.py:9")
    assert list(marked((tmp_path / "token").read_text())) == []


def test_a_signal_to_memlab_ends_the_command_too(folder, tmp_path):
    code = (
        STAND_IN + f"pathlib.Path({str(tmp_path / 'token')!r}).write_text(os.environ['MEMLAB_LAUNCH'])\ntime.sleep(60)"
    )
    with memlab("--output", str(folder), "--", *python(code), stderr=subprocess.DEVNULL) as started:
        until((tmp_path / "token").exists)
        started.send_signal(signal.SIGTERM)
    assert started.returncode == 130
    assert folder.read_record().status == "interrupted"
    assert list(marked((tmp_path / "token").read_text())) == []


def test_in_a_terminal_the_command_sees_a_terminal_and_its_output_is_unchanged(folder):
    code = "import sys; print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())"
    ours, theirs = pty.openpty()
    with memlab("--output", str(folder), "--", *python(code), stdin=theirs, stdout=theirs, stderr=theirs) as started:
        os.close(theirs)
        seen = b""
        while piece := _read(ours):
            seen += piece
    os.close(ours)
    assert started.returncode == 0
    assert b"True True True\r\n" in seen
    assert folder.launcher_log.read_text() == "True True True\n"


def test_ctrl_c_reaches_the_command_once_as_without_memlab(folder, tmp_path):
    code = (
        "import pathlib, time\n"
        f"try: pathlib.Path({str(tmp_path / 'ready')!r}).touch(); time.sleep(60)\n"
        "except KeyboardInterrupt: print('caught'); time.sleep(0.2); print('saved')"
    )
    words = [sys.executable, "-m", "memlab", "measure", "--output", str(folder), "--", *python(code)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(words[0], words)
    until((tmp_path / "ready").exists)
    os.write(terminal, b"\x03")
    seen = b""
    while piece := _read(terminal):
        seen += piece
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert b"caught\r\nsaved\r\n" in seen
    assert folder.read_record().status == "interrupted"


def until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


def test_without_a_terminal_standard_output_and_error_stay_apart(folder):
    code = "import sys; print('out'); print('err', file=sys.stderr); print(sys.stdout.isatty())"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with memlab("--output", str(folder), "--", *python(code), **pipes) as started:
        out, err = started.communicate()
    assert out == "out\nFalse\n"
    assert err.startswith("err\n")


def test_the_environment_differs_in_the_path_and_the_mark_alone(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "5")
    seen = tmp_path / "seen"
    measure(python(f"import json, os; json.dump(dict(os.environ), open({str(seen)!r}, 'w'))"), folder)
    environment = json.loads(seen.read_text())
    changed = {key for key in {*environment, *os.environ} if environment.get(key) != os.environ.get(key)}
    assert changed - {"LC_CTYPE"} == {"PYTHONPATH", "MEMLAB_LAUNCH"}


def test_no_secret_lands_in_the_folder(folder, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a-very-secret-key")
    code = STAND_IN + "print(os.environ['WANDB_API_KEY'], sys.argv[1]); leave()"
    measure([*python(code), TOKEN], folder)
    for path in folder.path.rglob("*"):
        if path.is_file():
            assert TOKEN not in path.read_text() and "a-very-secret-key" not in path.read_text(), path


def test_an_earlier_run_is_not_replaced_by_mistake(folder):
    measure(python("pass"), folder)
    with pytest.raises(FolderError, match="--force"):
        measure(python("pass"), folder)
    assert measure(python(STAND_IN + "leave()"), folder, force=True).status == "ok"


def test_what_was_interrupted_is_measured_again_without_force(folder):
    """As ``memlab measure`` advises after Ctrl-C. Another command would replace what is not its own."""
    record = measure(python(STAND_IN + "leave()"), folder)
    folder.finish(replace(record, status="interrupted"))
    with pytest.raises(FolderError, match=r"the run of another configuration \(training\.command: .* --force"):
        measure(python("pass"), folder)
    assert measure(python(STAND_IN + "leave()"), folder).status == "ok"


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FolderError, match="not memlab's"):
        measure(python("pass"), RunFolder(tmp_path))


def test_a_program_that_does_not_exist_is_no_run(folder):
    with pytest.raises(CommandNotFound, match="nonesuch"):
        measure(["nonesuch"], folder)
    with pytest.raises(CommandNotFound, match=r"Write python3 train\.py\."):
        measure(["train.py"], folder)
    assert not folder.path.exists()


def test_a_misspelt_program_is_answered_with_the_nearest():
    with pytest.raises(CommandNotFound, match=r"pyhton3: no such program on the PATH\. Did you mean 'python3'\?"):
        check_program(["pyhton3", "train.py"])
