"""A machine of one's own, as docs/howto/gpu_and_price.md shows it: its files and its commands."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from memlab.cli.commands import advise, plan
from memlab.cli.main import main
from memlab.core.errors import MemlabError
from memlab.planner import user_command
from memlab.system import machine

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "gpu_and_price.md").read_text()
FILES = re.findall(r"`(my_conf/hardware/\w+\.yaml)`:\n\n```yaml\n(.+?)```", PAGE, re.S)
COMMANDS = re.search(r"```bash\n(.+?)```", PAGE, re.S)[1].splitlines()


class Reached(MemlabError):
    """Ends a command where its work would begin."""


@pytest.fixture
def machines(tmp_path, monkeypatch) -> list[tuple]:
    """GPU, number of GPUs, memory and price of each machine that a command works for."""
    for name, text in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "detect", machine.Machine)
    found = []

    def reach(*hardware):
        found.extend((each.gpu, each.gpus, each.memory_gib, each.usd_per_gpu_hour) for each in hardware)
        raise Reached

    monkeypatch.setattr(user_command, "predict_command", lambda command, hardware, *rest: reach(hardware))
    monkeypatch.setattr(plan, "largest_batches", lambda rows, _: reach(*(row.config.hardware for row in rows)))
    monkeypatch.setattr(advise, "selected", lambda *arguments, **options: [])
    monkeypatch.setattr("memlab.cli.experiments.make_plan", lambda config, choices: reach(config.hardware))

    def training(runs, training):
        found.append((training.gpu, None, training.memory_gib, training.usd_per_gpu_hour))
        raise Reached

    monkeypatch.setattr("memlab.analyse.advise.advise", training)
    return found


MINE, RENTED = ("RTX 6000 Ada", 2, 47.5, 0.8), ("A100-SXM4-80GB", 4, 79.25, 1.2)


@pytest.mark.parametrize(
    ("command", "expected"), [("predict", {MINE}), ("plan", {MINE, RENTED}), ("run", {RENTED}), ("advise", {RENTED})]
)
def test_commands_take_machine_and_price_from_a_file(machines, monkeypatch, command, expected):
    [words] = [shlex.split(line) for line in COMMANDS if line.startswith(f"memlab {command} ")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main(words[1:])
    assert ended.value.code == 2
    assert {(gpu, gpus or 4, memory, price) for gpu, gpus, memory, price in machines} == expected


def test_a_folder_that_is_not_there_is_one_line(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--config-dir", "nowhere", "hardware=mine"])
    assert capsys.readouterr().err.startswith("memlab: argument --config-dir: nowhere is no folder")
