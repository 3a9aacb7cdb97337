"""How a point ended, from what a launch leaves behind: rank files, an exit code, logs."""

import pytest

from memlab.core.record import STATUSES
from memlab.launch.outcome import host_oom_kills, outcome, tail
from memlab.launch.process import Ended
from memlab.runs.folder import RunFolder

EXITED = Ended("exited", 0, 10.0)
TIMEOUT = Ended("timeout", None, 1800.0)
INTERRUPTED = Ended("interrupted", None, 3.4)
KILLED = Ended("exited", -9, 5.0, outlived_by_ranks=True)


def crashed(returncode: int) -> Ended:
    return Ended("exited", returncode, 10.0)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "logs").mkdir()
    return RunFolder(tmp_path)


OK0, OK1 = ({"rank": rank, "status": "ok", "reason": None} for rank in (0, 1))
OOM = {"rank": 1, "status": "gpu_oom", "reason": "no memory", "oom": {"phase": "backward", "step": 2}}
OOM_EARLY = {"rank": 0, "status": "gpu_oom", "reason": "no memory", "oom": {"phase": None, "step": 0}}
RUNS = {"rank": 0, "status": "interrupted", "reason": "killed", "attached": {"at": {"phase": "forward", "step": 3}}}
HOST = {"rank": 0, "status": "host_oom", "reason": "MemoryError: "}
LOST = {"rank": 0, "status": "infra", "reason": "DistBackendError: lost"}
BROKEN = {"rank": 1, "status": "failed", "reason": "ValueError: odd"}


@pytest.mark.parametrize(
    ("ranks", "ended", "host_ooms", "status", "reason"),
    [
        ([OK0, OK1], EXITED, 0, "ok", None),
        ([OK1, OK0], crashed(1), 0, "ok", None),  # the results are there; how the launcher left does not matter
        ([OK0, OK1], TIMEOUT, 1, "ok", None),
        ([LOST, OOM], crashed(1), 0, "gpu_oom", "rank 1 in backward, step 2: no memory"),
        ([OOM_EARLY], TIMEOUT, 0, "gpu_oom", "rank 0: no memory"),
        ([HOST, OOM], crashed(1), 0, "gpu_oom", "rank 1 in backward, step 2: no memory"),
        ([HOST, BROKEN], crashed(1), 0, "host_oom", "rank 0: MemoryError: "),
        ([LOST], crashed(-9), 2, "host_oom", "the kernel's out-of-memory killer ended 2 process(es) of this run"),
        ([], INTERRUPTED, 0, "interrupted", "stopped by a signal after 3 s"),
        (
            [OK0],
            TIMEOUT,
            0,
            "timeout",
            "the command had not ended after 1800 s; the Python stacks of all ranks are in logs/",
        ),
        (
            [RUNS, OK1],
            TIMEOUT,
            0,
            "timeout",
            "the command had not ended after 1800 s; rank 0 was last seen in forward, step 3; the Python stacks of all "
            "ranks are in logs/",
        ),
        (
            [],
            Ended("timeout", None, 90.0, stopped=(1,)),
            0,
            "timeout",
            "the command had not ended after 90 s; ranks [1] were stopped (SIGSTOP, or a debugger) and could not go "
            "on; the Python stacks of the others are in logs/",
        ),
        ([OK0, BROKEN], crashed(1), 0, "failed", "rank 1: ValueError: odd"),
        ([LOST, BROKEN], crashed(1), 0, "failed", "rank 1: ValueError: odd"),
        ([LOST], crashed(1), 0, "failed", "ranks [1] died without a word (killed?); rank 0: DistBackendError: lost"),
        ([LOST, {**LOST, "rank": 1}], crashed(1), 0, "infra", "rank 0: DistBackendError: lost"),
        (
            [RUNS],
            crashed(247),
            0,
            "failed",
            "ranks [0, 1] died without a word (killed?); rank 0 was last seen in forward, step 3; the command ended "
            "with exit code 247",
        ),
        ([], crashed(-9), 0, "failed", "no figures of ranks [0, 1], of 2; the command was killed by signal 9"),
        ([OK0], crashed(139), 0, "failed", "no figures of ranks [1], of 2; the command ended with exit code 139"),
        ([OK0], EXITED, 0, "failed", "no figures of ranks [1], of 2"),
    ],
)
def test_how_a_point_ended(folder, ranks, ended, host_ooms, status, reason):
    assert outcome(folder, ranks, ended, host_ooms, 2) == (status, reason)
    assert status in STATUSES


def test_a_killed_launcher_is_a_failure_whatever_its_exit_code_says(folder):
    status, reason = outcome(folder, [], KILLED, 0, 2)
    assert status == "failed" and "launcher was killed" in reason and "[0, 1]" in reason


@pytest.mark.parametrize("log", ["launcher.log", "rank1.log"])
def test_a_port_that_was_taken_is_worth_another_try(folder, log):
    (folder.path / "logs" / log).write_text("RuntimeError: EADDRINUSE\nmore\n")
    assert outcome(folder, [], crashed(1), 0, 2)[0] == "infra"


def test_the_first_rank_without_a_result_has_the_last_word(folder):
    folder.rank_log(0).write_text("fine\n")
    folder.rank_log(1).write_text("early\n  ImportError: no such thing\n-----\n\n")
    folder.launcher_log.write_text("exits with return code = 1\n")
    reason = outcome(folder, [OK0], crashed(1), 0, 2)[1]
    assert reason.endswith("the last line of rank1.log: ImportError: no such thing")


def test_ranks_without_words_leave_them_to_the_launcher(folder):
    folder.launcher_log.write_text("ModuleNotFoundError: deepspeed\n")
    assert outcome(folder, [], crashed(1), 0, 2)[1].endswith(
        "the last line of launcher.log: ModuleNotFoundError: deepspeed"
    )


def test_the_tail_of_a_log_is_short_however_long_the_log(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 200_000 + b"\nline 1\n\xff\nline 3\n")
    assert tail(log, 3) == "line 1\n\ufffd\nline 3\n"
    assert len(tail(log, 100)) <= 65537
    assert tail(tmp_path / "none", 3) == ""


def test_kills_of_this_control_group_are_counted_where_the_kernel_tells():
    assert host_oom_kills() >= 0
