"""Every number on a command line has its range."""

import argparse
import importlib
import keyword

import pytest

from memlab.cli.main import COMMANDS, main

MODULES = [f"memlab.cli.commands.{name}{'_' * keyword.iskeyword(name)}" for name in COMMANDS if name != "run"]
ADVISE = ["advise", "no-such-folder", "--samples", "1000", "--seq-len", "2048"]


def refusal(words: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "nan"], "argument --epochs: must be a finite number, not nan"),
        (["--epochs", "1e400"], "argument --epochs: must be a finite number, not 1e400"),
        (["--epochs", "0"], "argument --epochs: must be more than 0.0, not 0"),
        (["--epochs", "two"], "argument --epochs: must be a number, not 'two'"),
        (["--samples", "-5"], "argument --samples: must be at least 1, not -5"),
        (["--samples", "0"], "argument --samples: must be at least 1, not 0"),
        (["--samples", "1.5"], "argument --samples: must be a whole number, not '1.5'"),
        (["--samples", "1" + "0" * 30], "argument --samples: must be at most 9223372036854775807, not 1000"),
        (["--effective-batch", "0"], "argument --effective-batch: must be at least 1, not 0"),
        (["--usd-per-gpu-hour=-1"], "argument --usd-per-gpu-hour: must be at least 0.0, not -1"),
        (["--usd-per-hour=1"], "argument --usd-per-hour: it is now --usd-per-gpu-hour, the price of one GPU"),
        (["--gpu-memory", "inf"], "argument --gpu-memory: must be a finite number, not inf"),
    ],
)
def test_advice_on_a_number_out_of_its_range_is_refused(words, message, capsys):
    assert message in refusal([*ADVISE, *words], capsys)


def test_a_margin_is_a_share(capsys):
    assert "must be less than 1.0, not 1" in refusal(["fit", "no-such-folder", "--margin", "1"], capsys)


def numbers_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options of a parser, and of its sub-parsers, that take a number of any size."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [each for sub in action.choices.values() for each in numbers_of(sub)]
        elif action.type in (int, float):
            found.append(action)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_no_command_takes_a_number_without_a_range(module):
    parser = argparse.ArgumentParser()
    importlib.import_module(module).add_arguments(parser)
    assert [action.dest for action in numbers_of(parser)] == []
