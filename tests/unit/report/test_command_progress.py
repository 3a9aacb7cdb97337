"""Progress of the prediction of a command."""

import os
import time

import pytest
from rich.console import Console

from memlab.report.command_progress import CommandProgress
from memlab.runs.folder import RunFolder


def shown(folder, log: str) -> str:
    (folder / "command.log").write_text(log)
    return CommandProgress(RunFolder(folder), Console()).line().partition(" s: ")[2]


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", "before the first step"),
        (
            "loading\n[W1123 08:25:37.149389151 socket.cpp:207] [c10d] The hostname\n",
            "before the first step; the script says: loading",
        ),
        ("loading the model\n", "before the first step; the script says: loading the model"),
        (
            "loading\nmemlab: 1,200 of 5,000 batches of the epoch read ahead\n",
            "1,200 of 5,000 batches of the epoch read ahead",
        ),
        (
            "\rTokenizing train dataset:   0%|          | 0/10000 [00:00<?, ? examples/s]"
            "\rTokenizing train dataset:  40%|####      | 4000/10000 [00:01<00:01, 3999.10 examples/s]",
            "tokenizing train dataset, 4,000 of 10,000",
        ),
        ("Map (num_proc=4):  40%|####      | 4000/10000 [00:01<?, ? examples/s]", "preparing data, 4,000 of 10,000"),
    ],
)
def test_the_progress_says_what_the_script_does(tmp_path, log, line):
    assert shown(tmp_path, log) == line


def test_what_a_terminal_would_obey_is_not_shown_and_markup_is_text(tmp_path, capsys):
    out = Console(force_terminal=True, color_system=None, width=200)
    (tmp_path / "command.log").write_text("\x1b]2;title\x07\x1b[2J\x9b31m [/] [red]loading\x08\n")
    with CommandProgress(RunFolder(tmp_path), out):
        time.sleep(0.3)
    shown = capsys.readouterr().out
    assert "[/] [red]loading" in shown
    assert (
        not [letter for letter in "\x07\x9b\x08" if letter in shown]
        and "\x1b]2" not in shown
        and "\x1b[2J" not in shown
    )


def test_a_pipe_in_the_place_of_the_log_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "command.log")
    os.mkfifo(tmp_path / "rank0.steps.jsonl")
    assert "step 1" in CommandProgress(RunFolder(tmp_path), Console()).line()


def test_the_progress_names_the_step_and_ranks_that_differ(tmp_path):
    log = "Map:  40%|####      | 4000/10000 [00:01<00:01, 3999.10 examples/s]"
    for rank, steps in ((0, 2), (7, 2)):
        (tmp_path / f"rank{rank}.steps.jsonl").write_text("".join(f'{{"step": {n + 1}}}\n' for n in range(steps)))
    assert shown(tmp_path, log) == "step 3"
    (tmp_path / "rank7.steps.jsonl").write_text('{"step": 1}\n')
    assert shown(tmp_path, log) == "step 2 to 3; here, ranks do not wait for each other"
