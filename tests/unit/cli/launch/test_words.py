"""Words of launch.py: what is wrong is one line and leaves nothing, and help is for people."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launched import lines, process


def nested(levels: int) -> str:
    """A word with a value of so many levels."""
    return f"model.overrides={'{a:' * levels}1{'}' * levels}"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("bogus=1", "memlab: Unknown key 'bogus'."),
        ("name=../x", "memlab: 'name' names a folder under outputs/ and cannot lead elsewhere, as '../x' does."),
        ("optimizer.name=AdmW", "memlab: 'optimizer.name' is none of DeepSpeed's own optimizers: 'AdmW'. Did you mean"),
        ("batch.micro=0", "memlab: 'batch.micro' must be at least 1, not 0."),
        ("batch.micro=two", "memlab: 'batch.micro' must be a whole number, not 'two'."),
        pytest.param(nested(400), "memlab: a value is nested too deeply", id="400 deep"),
        pytest.param(nested(100), "memlab: a value is nested too deeply", id="100 deep"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(launch, here, word, message):
    done = launch("hardware=cpu", word)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = lines(done)
    assert line.startswith(message)
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("batch.mikro=1,2", "memlab: Unknown key 'batch.mikro'. Did you mean 'batch.micro'?"),
        (
            "gradient_accumulation_steps=1,2",
            "memlab: Unknown key 'gradient_accumulation_steps': here it is batch.accum",
        ),
        ("name=${oc.env:NOT_SET_HERE}", "memlab: 'hydra.sweep.dir' takes the environment variable NOT_SET_HERE, which"),
        ("optimizer.lr=interval(0,1)", "memlab: 'optimizer.lr': an interval is for a sweeper that searches"),
    ],
)
def test_what_is_wrong_in_a_sweep_is_one_line_and_leaves_nothing(launch, here, word, message):
    done = launch("-m", "hardware=cpu", "seed=1,2", word)
    assert (done.returncode, len(lines(done)), list(here.iterdir())) == (2, 1, [])
    assert done.stderr.startswith(message)


@pytest.mark.parametrize("words", [[], ["-m"]])
def test_an_option_file_that_asks_for_an_object_is_refused(launch, here, words):
    (here / "model").mkdir()
    (here / "model" / "evil.yaml").write_text("!!python/object/apply:os.mkdir [made]")
    done = launch(*words, "--config-dir", str(here), "hardware=cpu", "model=evil")
    assert done.returncode == 2
    [line] = lines(done)
    assert "tag:yaml.org,2002:python/object/apply:os.mkdir" in line and "evil.yaml" in line
    assert [path.name for path in here.iterdir()] == ["model"]


@pytest.mark.parametrize("word", ["zero_stage=[zero2,zero3]", "~zero_stage"])
def test_a_group_without_one_option_is_refused_in_a_sweep_too(launch, here, word):
    done = launch("-m", "hardware=cpu", word, "seed=1,2")
    assert (done.returncode, len(lines(done)), list(here.iterdir())) == (2, 1, [])
    assert "Config group 'zero_stage' needs one option: " in done.stderr


def test_a_sweep_cannot_leave_the_outputs_either(launch, here):
    assert launch("-m", "name=../x", "seed=1,2").returncode == 2
    assert not list(here.iterdir()) and not (here.parent / "x").exists()


def test_the_script_itself_is_one_line_and_exit_2_for_what_is_wrong(tmp_path):
    done = process(tmp_path, "hardware=cpu", "bogus=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mode=predict", "predict.calibrate=/nonexistent"], "predict.calibrate=/nonexistent: no such file or folder."),
        (["data=jsonl", "data.path=/nonexistent"], "data.path=/nonexistent: No such file or directory"),
        (
            ["model=hf", "model.path=../../etc/passwd"],
            "model.path=../../etc/passwd: no such folder, and no model of the",
        ),
        (["model.overrides.hiden_size=5"], "model.overrides.hiden_size: LlamaConfig has no such key. Did you mean"),
        (["sweep.max_usd=-1"], "'sweep.max_usd' must be at least 0.0, not -1.0."),
    ],
)
@pytest.mark.parametrize("sweep", [[], ["-m", "seed=1,2"]])
def test_what_is_not_there_is_refused_before_anything_is_written(launch, here, words, message, sweep):
    done = launch(*sweep, "hardware=h100_x1", *words)
    assert done.returncode == 2 and done.stdout == ""
    [line] = lines(done)
    assert line.startswith(f"memlab: {message}")
    assert not list(here.iterdir())


def test_cfg_prints_the_configuration_and_starts_nothing(launch, here):
    import yaml

    done = launch("hardware=h100_x8", "zero_stage=zero3", "--cfg", "job", "--resolve")
    values = yaml.safe_load(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (values["zero_stage"]["stage"], values["hardware"]["gpus"]) == (3, 8)
    assert not list(here.iterdir())


def test_options_may_stand_between_words(launch, here):
    done = launch("hardware=cpu", "--cfg", "job", "seed=7", "--package", "seq_len", "seq_len.tokens=64")
    assert (done.returncode, done.stdout) == (0, "# @package seq_len\ntokens: 64\n")
    done = launch("hardware=cpu", "mode=compose", "-m", "seed=7,8")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize("shown", ["job", "all"])
@pytest.mark.parametrize(
    ("word", "message"),
    [("batch.micro=0", "'batch.micro' must be at least 1, not 0."), ("model=hf", "'model.path' has no value")],
)
def test_cfg_says_what_is_wrong_with_what_it_prints(launch, here, shown, word, message):
    done = launch("hardware=cpu", word, "--cfg", shown)
    assert done.returncode == 2 and "batch:" in done.stdout
    assert len(lines(done)) == 1 and message in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--experimental-rerun", "config.pickle"], "run the words in .hydra/overrides.yaml of the run folder again."),
        (["-sc", "query=bash"], "Turn completion on with "),
        (["-m", "--cfg", "job"], "Only one of --run, --multirun, --cfg, --info and --shell_completion can be s"),
        (["--config-name", "nothing"], "Cannot find primary config 'nothing'"),
        (["--config-path", "nowhere"], "module 'memlab.cli.nowhere' not found."),
        (["-cp", "nowhere"], "--config-dir adds a folder of yours"),
        (
            ["seed=1", "--dry-run", "seed=2"],
            "Unknown option '--dry-run'. Here it is sweep.dry_run=<value>, a word with",
        ),
        (["--batch_size=4"], "Unknown option '--batch_size'. "),
        (["-m", "mode=compose", "hydra/launcher=basic", "seed=1,2"], "hydra/launcher=basic cannot start it"),
        (["--cfg", "jb"], "invalid choice: 'jb'"),
        (["--resolve"], "The --resolve flag can only be used in conjunction with --cfg or --help"),
    ],
)
def test_what_hydra_cannot_do_is_one_line(launch, here, words, message):
    done = launch(*words)
    assert (done.returncode, len(lines(done)), list(here.iterdir())) == (2, 1, []) and message in done.stderr


def test_a_folder_in_place_of_conf_is_told_from_one_beside_it(launch, here):
    (here / "mine").mkdir()
    (here / "mine" / "study.yaml").write_text("defaults: [config]\n")
    [line] = lines(launch("--config-path", str(here / "mine"), "--config-name", "study"))
    assert line.startswith("memlab: In 'study': Could not load 'config'. --config-path replaces memlab's own conf/: ")


def test_help_is_for_people(launch, here):
    done = launch("--help")
    assert done.returncode == 0
    for part in (
        "zero_stage: zero0, zero1, zero2, zero3",
        "python launch.py model=tiny",
        "python launch.py -m",
        "--cfg job",
    ):
        assert part in done.stdout
    assert not list(here.iterdir())


def test_help_lists_the_options_of_a_folder_of_ones_own(launch, here):
    (here / "mine" / "model").mkdir(parents=True)
    (here / "mine" / "model" / "ours.yaml").write_text("path: ours\n")
    assert ", olmo2_1b, ours, phi3_mini," in launch("--config-dir", "mine", "--help").stdout


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("mode=", ["mode=measure", "mode=predict", "mode=compose"]),
        ("sweep.search=b", ["sweep.search=batch"]),
        ("seed=", ["seed=0"]),
        ("bogus.mode=", []),
    ],
)
def test_a_key_with_a_few_values_is_completed_to_each(launch, word, words):
    assert launch("-sc", "query=bash", COMP_LINE=f"python launch.py {word}").stdout.split() == words


def test_words_are_completed(tmp_path):
    env = {**os.environ, "COMP_LINE": "python launch.py zero_stage=", "COMP_POINT": "28"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve().parents[4] / "launch.py"), "-sc", "query=bash"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "zero_stage=zero3" in done.stdout.split()
