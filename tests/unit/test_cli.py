"""The two ways in, as a person meets them: real processes, from a folder that is not the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memlab.cli import COMMANDS, EXIT_CODES, main
from memlab.record import STATUSES, RunFolder, read_json

LAUNCH = Path(__file__).parents[2] / "launch.py"


@pytest.fixture
def launch(tmp_path):
    """``launch("bogus=1", RANK="0")``: launch.py with these words and variables, in an empty folder."""

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess:
        inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
        return subprocess.run(
            [sys.executable, str(LAUNCH), *words],
            cwd=tmp_path,
            env={**inherited, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def lines(done: subprocess.CompletedProcess) -> list[str]:
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"LOCAL_RANK": "0"}, 1),
        ({"LOCAL_RANK": "0", "RANK": "0"}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 1),
        ({"LOCAL_RANK": "1"}, 0),
        ({"LOCAL_RANK": "1", "RANK": "1"}, 0),
        ({"LOCAL_RANK": "0", "RANK": "8"}, 0),
    ],
)
def test_inside_a_launcher_one_process_says_so_and_none_goes_on(launch, tmp_path, variables, words):
    done = launch("hardware=cpu", **variables)
    assert done.returncode == 2 and done.stdout == ""
    assert len(lines(done)) == words
    assert all("started inside a distributed launcher" in line for line in lines(done))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("bogus=1", "memlab: Unknown key 'bogus': the configuration has no 'bogus'."),
        ("batch.micro=0", "memlab: 'batch.micro' must be at least 1, not 0."),
        ("batch.micro=two", "memlab: Error merging override batch.micro=two Value 'two'"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(launch, tmp_path, word, message):
    done = launch("hardware=cpu", word)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = lines(done)
    assert line.startswith(message)
    assert not list(tmp_path.iterdir())


def test_cfg_prints_the_configuration_and_starts_nothing(launch, tmp_path):
    import yaml

    done = launch("hardware=h100_x8", "zero_stage=zero3", "--cfg", "job", "--resolve")
    values = yaml.safe_load(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (values["zero_stage"]["stage"], values["hardware"]["gpus"]) == (3, 8)
    assert not list(tmp_path.iterdir())


def test_help_is_for_people(launch, tmp_path):
    done = launch("--help")
    assert done.returncode == 0
    for part in (
        "zero_stage: zero0, zero1, zero2, zero3",
        "python launch.py model=tiny",
        "python launch.py -m",
        "--cfg job",
    ):
        assert part in done.stdout
    assert not list(tmp_path.iterdir())


def test_an_unsupported_combination_is_a_record_at_once(launch, tmp_path):
    done = launch("hardware=cpu", "offload=param", "hydra.run.dir=here")
    assert done.returncode == EXIT_CODES["unsupported"] == 8
    record = RunFolder(tmp_path / "here").read_record()
    assert record.status == "unsupported" and "only ZeRO stage 3 partitions parameters" in record.reason
    assert "; instead: " in record.reason
    assert record.choices["offload"] == "param"
    assert read_json(tmp_path / "here" / "plan.json")["command"] == []


@pytest.mark.parametrize(("words", "place"), [([], "20*-*-*"), (["name=mine"], "mine")])
def test_run_folders_are_under_the_name_or_the_date(launch, tmp_path, words, place):
    launch("hardware=cpu", "offload=param", *words)
    [record] = tmp_path.glob("outputs/*/*/record.json")
    assert record.parent.match(f"outputs/{place}/{RunFolder(record.parent).read_record().run_id}")


def test_a_secret_among_the_words_reaches_no_file_in_any_run_of_them(launch, tmp_path):
    words = ["hardware=cpu", "offload=param", "data.path=/x/open-sesame", "hydra.run.dir=here"]
    for _ in range(2):  # the second finds the record and runs nothing, but Hydra writes its files again
        launch(*words, MY_TOKEN="open-sesame")
        files = [path for path in (tmp_path / "here").rglob("*") if path.is_file()]
        assert len(files) == 7
        assert not [path.name for path in files if "sesame" in path.read_text()]


# --- memlab COMMAND


def test_every_status_has_its_own_exit_code():
    assert set(EXIT_CODES) == set(STATUSES)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert not {1, 2} & set(EXIT_CODES.values())


def called(*words: str) -> int | str | None:
    with pytest.raises(SystemExit) as left:
        main(words)
    return left.value.code


def test_show_prints_the_run(tmp_path, record, capsys):
    RunFolder(tmp_path).finish(record())
    assert called("show", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "tiny-zero2-s512-b1-2xH200-0123abcd" in out and "2,048 tokens/s" in out


@pytest.mark.parametrize("text", [None, "{", '{"schema_version": 99}'])
def test_show_says_what_is_wrong_with_a_folder(tmp_path, capsys, text):
    if text:
        (tmp_path / "record.json").write_text(text)
    assert called("show", str(tmp_path)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"memlab: {tmp_path}/record.json: ")


def test_help_lists_the_commands(capsys):
    assert called("--help") == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("words", [[], ["shew"], ["show"]])
def test_a_wrong_command_is_an_error_of_input(capsys, words):
    assert called(*words) == 2


INTERRUPTED = """
import dataclasses, sys
from memlab import cli, hydra_app
from memlab.launch.run import record_unsupported
from memlab.machine import Machine

def run_one(plan, folder, force):
    print("started")
    return dataclasses.replace(record_unsupported(plan, folder, ["stopped"], Machine()), status="interrupted")

hydra_app.run_one = run_one
cli.launch()
"""


@pytest.mark.parametrize("words", [["seed=1"], ["-m", "seed=1,2"]])
def test_an_interrupt_ends_a_sweep_too(tmp_path, words):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *words, "hardware=cpu"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(LAUNCH.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == EXIT_CODES["interrupted"]
    assert done.stdout.count("started") == 1
