"""``python launch.py`` as a person meets it, from a folder that is not the checkout."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from memlab.cli import main as cli
from memlab.cli.experiments import EXIT_CODES
from memlab.core.plan import run_id
from memlab.files.conf_files import conf_dir
from memlab.files.json_file import read_json
from memlab.runs.folder import RunFolder
from memlab.system.deadman import marked_by

LAUNCH = Path(__file__).parents[3] / "launch.py"
INSIDE_A_LAUNCHER = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def launch(tmp_path, monkeypatch, capfd):
    """``launch("bogus=1", RANK="0")``: what launch.py does with these words and variables, in an empty folder."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as run_hydra sets it: gone after the test
    for name in INSIDE_A_LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")

    def run(*words: str, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["launch.py", *words])
            for name, value in variables.items():
                patch.setenv(name, value)
            capfd.readouterr()
            with pytest.raises(SystemExit) as left:
                cli.launch()
        out, err = capfd.readouterr()
        return Done(left.value.code or 0, out, err)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def here(launch) -> Path:
    """The folder that launch runs in."""
    return Path.cwd()


def nested(levels: int) -> str:
    """A word with a value of so many levels."""
    return f"model.overrides={'{a:' * levels}1{'}' * levels}"


def process(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """launch.py in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if name not in INSIDE_A_LAUNCHER}
    command = [sys.executable, str(LAUNCH), *words]
    return subprocess.run(
        command, cwd=folder, env={**inherited, **variables}, capture_output=True, text=True, timeout=60
    )


def lines(done: Done) -> list[str]:
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
def test_inside_a_launcher_one_process_says_so_and_none_goes_on(launch, here, variables, words):
    done = launch("hardware=cpu", **variables)
    assert done.returncode == 2 and done.stdout == ""
    assert len(lines(done)) == words
    assert all("a distributed launcher started memlab" in line for line in lines(done))
    assert not list(here.iterdir())


@pytest.mark.parametrize(("task", "words"), [("0", 1), ("1", 0)])
def test_of_the_tasks_of_srun_one_says_so_and_none_goes_on(launch, here, task, words):
    done = launch("hardware=cpu", SLURM_STEP_NUM_TASKS="2", SLURM_PROCID=task)
    assert (done.returncode, done.stdout, len(lines(done))) == (2, "", words)
    assert all("srun started memlab in several tasks" in line and "srun --ntasks=1" in line for line in lines(done))
    assert not list(here.iterdir())


def test_a_single_task_of_srun_is_as_good_as_none(launch):
    """And so is a batch script: it has a task number, but is no step of srun's."""
    for variables in ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}):
        assert launch("hardware=cpu", "--cfg", "job", **variables).returncode == 0


def test_what_is_no_number_of_tasks_is_none_of_srun(launch):
    assert launch("hardware=cpu", "--cfg", "job", SLURM_STEP_NUM_TASKS="abc").returncode == 0


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


@pytest.mark.parametrize("words", [[], ["-m"]])
def test_an_option_file_that_asks_for_an_object_is_refused(launch, here, words):
    (here / "model").mkdir()
    (here / "model" / "evil.yaml").write_text("!!python/object/apply:os.mkdir [made]")
    done = launch(*words, "--config-dir", str(here), "hardware=cpu", "model=evil")
    assert done.returncode == 2
    [line] = lines(done)
    assert "tag:yaml.org,2002:python/object/apply:os.mkdir" in line and "evil.yaml" in line
    assert [path.name for path in here.iterdir()] == ["model"]


def test_a_sweep_cannot_leave_the_outputs_either(launch, here):
    assert launch("-m", "name=../x", "seed=1,2").returncode == 2
    assert not list(here.iterdir()) and not (here.parent / "x").exists()


def test_the_script_itself_is_one_line_and_exit_2_for_what_is_wrong(tmp_path):
    done = process(tmp_path, "hardware=cpu", "bogus=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("words", "code"), [(["seed=1"], 8), (["-m", "seed=1"], 0)])
def test_a_prediction_is_never_a_measurement(launch, here, words, code):
    done = launch(*words, "hardware=cpu", "mode=predict", "offload=param")
    assert done.returncode == code
    (record,) = [json.loads(path.read_text()) for path in here.rglob("record.json")]
    assert (record["source"], record["status"]) == ("predicted", "unsupported")


def test_cfg_prints_the_configuration_and_starts_nothing(launch, here):
    import yaml

    done = launch("hardware=h100_x8", "zero_stage=zero3", "--cfg", "job", "--resolve")
    values = yaml.safe_load(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (values["zero_stage"]["stage"], values["hardware"]["gpus"]) == (3, 8)
    assert not list(here.iterdir())


@pytest.mark.parametrize("shown", ["job", "all"])
@pytest.mark.parametrize(
    ("word", "message"),
    [("batch.micro=0", "'batch.micro' must be at least 1, not 0."), ("model=hf", "'model.path' has no value")],
)
def test_cfg_says_what_is_wrong_with_what_it_prints(launch, here, shown, word, message):
    done = launch("hardware=cpu", word, "--cfg", shown)
    assert done.returncode == 2 and "batch:" in done.stdout
    assert len(lines(done)) == 1 and message in done.stderr


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


def test_an_unsupported_combination_is_a_record_at_once(launch, here):
    done = launch("hardware=cpu", "offload=param", "hydra.run.dir=here")
    assert done.returncode == EXIT_CODES["unsupported"] == 8
    record = RunFolder(here / "here").read_record()
    assert record.status == "unsupported" and "only ZeRO stage 3 partitions parameters" in record.reason
    assert "; instead: " in record.reason
    assert record.choices["offload"] == "param"
    assert read_json(here / "here" / "plan.json")["command"] == []


@pytest.mark.parametrize(("words", "place"), [([], "20*-*-*"), (["name=mine"], "mine")])
def test_run_folders_are_under_the_name_or_the_date(launch, here, words, place):
    launch("hardware=cpu", "offload=param", *words)
    [record] = here.glob("outputs/*/*/record.json")
    assert record.parent.match(f"outputs/{place}/{RunFolder(record.parent).read_record().run_id}")


def test_a_secret_among_the_words_reaches_no_file_in_any_run_of_them(launch, here):
    words = ["hardware=cpu", "offload=param", "data.path=/x/open-sesame", "hydra.run.dir=here"]
    for _ in range(2):  # the second finds the record and runs nothing
        launch(*words, MY_TOKEN="open-sesame")
        files = [path for path in (here / "here").rglob("*") if path.is_file()]
        assert len(files) == 9
        assert not [path.name for path in files if "sesame" in path.read_text()]


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


@pytest.mark.parametrize("words", [["seed=1"], ["-m", "seed=1"]])
def test_a_full_disk_is_one_line_and_no_half_a_record(launch, here, monkeypatch, words):
    def no_space(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)  # Hydra calls none
        done = launch(*words, "hardware=cpu", "offload=param")
    assert done.returncode == 1
    [line] = lines(done)
    assert line.startswith("memlab: Cannot write ") and "No space left on device" in line
    assert not list(here.rglob("record.json")) and not list(here.rglob("*.tmp"))


FOREIGN = {
    "logs/app.log": "x",
    "notes.tmp": "x",
    "rankings.json": "{}",
    "record.json": '{"mine": 1}',
    "plan.json": '{"mine": 1}',
}


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def foreign(here) -> Path:
    """A folder of somebody's."""
    for name, text in FOREIGN.items():
        path = here / "foreign" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return here / "foreign"


@pytest.mark.parametrize(
    "words",
    [
        ["hydra.run.dir=foreign"],
        ["hydra.run.dir=foreign", "force=true"],
        ["-m", "hydra.sweep.dir=foreign"],
        ["-m", "hydra.sweep.dir=.", "hydra.sweep.subdir=foreign"],
    ],
)
def test_a_folder_that_is_not_memlabs_is_refused_before_anything_is_written(launch, here, foreign, words):
    before = contents(here)
    done = launch(*words, "hardware=cpu", "mode=predict", "offload=param")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = lines(done)
    assert "holds files that are not memlab's" in line and "nothing was written" in line
    assert contents(here) == before


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["hydra.run.dir=new/folder", word]
            for word in ("batch.micro=0", "bogus=1", "zero_stage=zero4", "sweep.search=batch")
        ),
        *(
            ["-m", "hydra.sweep.dir=new", word]
            for word in ("batch.micro=0", "seed=1,x", "model=hf", "sweep.search=batch")
        ),
        *(["hydra.run.dir=file"], ["-m", "hydra.sweep.dir=file"], ["name=../x"]),
    ],
)
def test_nothing_of_a_refused_run_is_left(launch, here, words):
    (here / "file").write_text("a file")
    token = "hf_" + "sesame" * 5
    done = launch(*words, "hardware=cpu", "mode=predict", f"data.path=/x/{token}")
    assert done.returncode == 2 and len(lines(done)) == 1
    assert contents(here) == {"file": "a file"} and os.listdir(here) == ["file"]


@pytest.mark.parametrize("words", [["hydra.run.dir=/"], ["-m", "hydra.sweep.dir=/"]])
def test_the_root_of_the_file_system_is_no_run_folder(launch, words):
    before = os.listdir("/")
    done = launch(*words, "hardware=cpu", "offload=param")
    assert done.returncode == 2 and "memlab: / holds files that are not memlab's" in done.stderr
    assert os.listdir("/") == before


def test_a_run_folder_holds_the_marker_and_a_later_run_may_use_it(launch, here):
    for _ in range(2):
        assert launch("hardware=cpu", "offload=param", "hydra.run.dir=mine").returncode == 8
        assert (here / "mine" / ".memlab").read_text().startswith("A folder of memlab.")
    (here / "mine" / "notes.txt").write_text("a user's own")
    assert launch("hardware=cpu", "offload=param", "hydra.run.dir=mine").returncode == 8
    assert (here / "mine" / "notes.txt").read_text() == "a user's own"


@pytest.mark.parametrize("kept", [("record.json",), ("plan.json",), ("record.json", "plan.json")])
def test_folders_from_before_the_marker_are_memlabs_by_their_record_or_plan(launch, here, kept):
    words = ("-m", "hardware=cpu", "seed=1,2", "offload=param", "hydra.sweep.dir=old")
    assert launch(*words).returncode == 0
    for path in list((here / "old").rglob("*")):
        if path.is_file() and path.name not in kept:
            path.unlink()
    assert launch(*words).returncode == 0
    assert len(list(here.glob("old/*/.memlab"))) == 2 and (here / "old" / ".memlab").exists()


def test_the_folder_is_fixed_wherever_the_options_of_hydra_stand(launch, here):
    words = ("hardware=cpu", "offload=param", "hydra.run.dir='${now:%S}-${now:%f}'")
    (here / "conf").mkdir()
    assert launch("--config-dir", "conf", *words).returncode == launch(*words, "--config-dir", "conf").returncode == 8
    assert len(list(here.glob("*-*"))) == len(list(here.glob("*-*/record.json"))) == 2


def test_a_folder_whose_name_hydra_would_read_as_words(launch, here):
    assert launch("hardware=cpu", "offload=param", "hydra.run.dir='a, b=[c]'").returncode == 8
    assert (here / "a, b=[c]" / "record.json").exists()


def test_the_folder_of_what_composed_a_run_cannot_be_moved(launch, here):
    done = launch("hardware=cpu", "hydra.output_subdir=elsewhere")
    assert done.returncode == 2 and "'hydra.output_subdir' cannot be set" in done.stderr
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["name=" + "n" * 300], "choose a shorter name"),
        (["hydra.run.dir=" + "/".join(["d" * 100] * 50)], "choose a shorter name"),
        (["hydra.run.dir=file"], "part of the path is a file, not a folder"),
        (["hydra.run.dir=file/below"], "part of the path is a file, not a folder"),
        (["-m", "hydra.sweep.dir=file"], "part of the path is a file, not a folder"),
        (["-m", "name=" + "n" * 300], "choose a shorter name"),
        (["hydra.run.dir=/proc/mine"], "correct the path"),
    ],
)
def test_a_folder_that_cannot_be_made_is_refused_in_one_line(launch, here, words, advice):
    (here / "file").write_text("a file")
    done = launch(*words, "hardware=cpu", "offload=param")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = lines(done)
    assert advice in line and len(line) < 400
    assert contents(here) == {"file": "a file"}


QUICK = ("hardware=cpu", "mode=predict", "offload=param")
"""A record at once, since the combination is unsupported."""


@pytest.fixture
def studies(here) -> Path:
    """``my`` with two studies, and ``whole``, a copy of conf/ with both in it."""
    shutil.copytree(conf_dir(), here / "whole")
    (here / "my").mkdir()
    for name, stage in (("study", "zero1"), ("other", "zero0")):
        for folder in ("my", "whole"):
            text = f"defaults:\n  - config\n  - override zero_stage: {stage}\n  - _self_\nname: mine\n"
            (here / folder / f"{name}.yaml").write_text(text + "seed: ${oc.decode:${oc.env:MY_SEED,0}}\n")
    return here


WAYS_IN = {
    "words": ([], ["zero_stage=zero1"]),
    "name": (["--config-dir", "my", "--config-name", "study"], ["--config-dir", "my", "--config-name", "other"]),
    "path": (["-cp", "{here}/whole", "-cn", "study"], ["-cp", "{here}/whole", "-cn", "other"]),
    "environment": (["--config-dir=my", "-cn=study", "measure=quick"], ["--config-dir=my", "-cn=study"]),
}


@pytest.fixture(params=WAYS_IN)
def ways_in(request, studies, monkeypatch) -> tuple[list[str], list[str]]:
    """The words of two configurations, and the words that compose them."""
    monkeypatch.setenv("MY_SEED", "7")
    return tuple([word.format(here=studies) for word in words] for words in WAYS_IN[request.param])


def test_the_run_folder_is_named_by_what_hydra_composed_whatever_composed_it(launch, here, ways_in):
    for words in ways_in:
        assert launch(*words, *QUICK).returncode == 8
    found = {path.parent.name: RunFolder(path.parent).read_record() for path in here.glob("outputs/*/*/record.json")}
    assert len(found) == 2 and all(run_id(record.config) == name for name, record in found.items())


SAME = ("-m", "hydra.sweep.dir=place", "hydra.sweep.subdir=same")

PLACES = {
    "one run": ["hydra.run.dir=place/same"],
    "a sweep": [*SAME],
    "a job of another launcher": [*SAME, "hydra/launcher=basic"],
    "a job of another sweeper": [*SAME, "hydra/launcher=basic", "hydra/sweeper=basic"],
}


@pytest.mark.parametrize("place", PLACES)
def test_the_run_of_another_configuration_is_replaced_by_force_alone(launch, here, studies, place):
    (one, other), where, same = WAYS_IN["name"], PLACES[place], here / "place" / "same"
    launch(*one, *where, *QUICK)
    before = (same / "record.json").read_text()
    refused = launch(*other, *where, *QUICK)
    assert refused.returncode == 2 and (same / "record.json").read_text() == before
    [line] = lines(refused)
    assert f"{same} holds the run of another configuration (zero_stage.stage: 1 there, 0 here)" in line
    assert "force=true" in line
    assert launch(*other, *where, *QUICK, "force=true").returncode in (0, 8)
    assert RunFolder(same).read_record().config.zero_stage.stage == 0


def test_a_run_that_was_killed_is_not_replaced_by_another_either(launch, here):
    launch(*QUICK, "hydra.run.dir=same")
    (here / "same" / "record.json").unlink()
    assert launch(*QUICK, "hydra.run.dir=same", "seed=1").returncode == 2
    assert launch(*QUICK, "hydra.run.dir=same").returncode == 8


STUBBORN = """
import signal, sys
from memlab.cli import main as cli
from memlab.launch import job_launch, process
code = "import pathlib, signal, time\\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
code += "pathlib.Path('started').touch()\\ntime.sleep(60)"
job_launch.command = lambda *_: [sys.executable, "-S", "-c", code]
process.TERMINATE_S = 1.0
if sys.argv.pop() == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
cli.launch()
"""


def interrupted(folder: Path, numbers: list[int], *words: str) -> tuple[int, str]:
    """Send these signals, a moment apart, to a memlab whose ranks do not heed SIGTERM. Its exit code and errors."""
    command = [sys.executable, "-c", STUBBORN, "hardware=cpu", "hydra.run.dir=here", *words]
    environment = {**os.environ, "PYTHONPATH": str(LAUNCH.parent), "MEMLAB_TEST_INTERRUPT": str(folder)}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as memlab:
        deadline = time.monotonic() + 120
        while not (folder / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        for number in numbers:
            memlab.send_signal(number)
            time.sleep(0.2)
        errors = memlab.communicate(timeout=50)[1]  # less than its ranks would live
    assert not list(marked_by("MEMLAB_TEST_INTERRUPT", str(folder)))
    return memlab.returncode, errors


@pytest.mark.parametrize(
    ("numbers", "mode"),
    [
        ([signal.SIGHUP], ""),
        ([signal.SIGINT, signal.SIGINT, signal.SIGTERM], ""),
        ([signal.SIGHUP, signal.SIGINT], "nohup"),  # the first is ignored, the second ends it
    ],
)
def test_a_signal_ends_a_run_with_its_record_however_often_it_comes(tmp_path, numbers, mode):
    code, errors = interrupted(tmp_path, numbers, mode)
    assert code == EXIT_CODES["interrupted"]
    assert RunFolder(tmp_path / "here").read_record().status == "interrupted"
    assert errors.count("ending what was started") == (len(numbers) - 1) * (mode == "")


def test_words_are_completed(tmp_path):
    env = {**os.environ, "COMP_LINE": "python launch.py zero_stage=", "COMP_POINT": "28"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve().parents[3] / "launch.py"), "-sc", "query=bash"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "zero_stage=zero3" in done.stdout.split()
