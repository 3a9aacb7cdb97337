"""From Hydra's batch to jobs: folders, repeats, what is saved beside each, and a multirun that only shows."""

import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from memlab.cli import compose, experiments, hydra_app
from memlab.cli import main as cli
from memlab.cli.hydra_app import HydraTask
from memlab.files.json_file import read_json
from memlab.launch import job_launch
from memlab.runs.folder import RunFolder


def refuse_to_start(*_):
    raise AssertionError("nothing may be started")


@pytest.fixture
def multirun(tmp_path, tmp_path_factory, monkeypatch, capfd):
    """``multirun("seed=1,2")``: exit code and lines of launch.py -m with these words; nothing may be started."""
    monkeypatch.setattr(job_launch, "command", refuse_to_start)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.chdir(tmp_path)

    def sweep(*words: str, multirun: bool = True) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["launch.py", *["-m"] * multirun, *words, "hardware=cpu", "name=mine"])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.launch()
        out, err = capfd.readouterr()
        print(err, file=sys.stderr)  # for the report of a test that fails
        return left.value.code or 0, out

    return sweep


def records(folder: Path) -> list[Path]:
    return sorted(folder.glob("outputs/mine/*/record.json"))


def test_a_dry_run_shows_the_jobs_and_starts_nothing(multirun, tmp_path):
    code, out = multirun("seq_len.tokens=8,16", "offload=none,param", "sweep.dry_run=true")
    assert code == 0
    rows = [line for line in out.splitlines() if "tiny-zero2" in line]
    assert len(rows) == 4
    assert sum("to run" in row for row in rows) == sum("unsupported" in row for row in rows) == 2
    assert "2 to run in 1 launch, 2 known" in out
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    "words",
    [[], ["-m", "hydra/launcher=basic"], ["-m", "hydra/launcher=submitit_slurm"], ["-m", "hydra/sweeper=basic"]],
)
def test_a_dry_run_leaves_nothing(multirun, tmp_path, words):
    if "hydra/launcher=submitit_slurm" in words:
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    code, out = multirun("offload=param", "sweep.dry_run=true", *words, multirun=False)
    assert code == 0 and "0 to run in 0 launches, 1 known" in out
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["multirun.yaml"] * words.count(
        "hydra/sweeper=basic"  # Hydra's own sweeper writes it
    )


def test_slurms_launcher_needs_slurm(multirun, tmp_path, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    monkeypatch.setattr(hydra_app, "which", lambda program: None)
    assert multirun("seed=1,2", "hydra/launcher=submitit_slurm")[0] == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("status", "code"), [("unsupported", 0), ("failed", 1), ("interrupted", 130)])
def test_a_sweep_by_another_launcher_ends_with_the_exit_code_of_a_sweep(multirun, monkeypatch, status, code):
    """And a later point does not hide it."""
    run = experiments.run_single

    def ended(job, config):
        record = run(job, config)
        return replace(record, status=status) if config.seed == 1 else record

    monkeypatch.setattr(experiments, "run_single", ended)
    assert multirun("seed=1,2", "offload=param", *BASIC)[0] == code


def test_a_dry_run_with_a_guide_is_a_quote_and_nothing_else_is(multirun, tmp_path):
    code, out = multirun("seed=1,2", "sweep.dry_run=true", "sweep.guide=quote")
    assert code == 0 and "2 to run in 2 launches" in out
    assert "Quote: 2 not predicted.\nNot counted: 2 points (a CPU has no caching allocator to predict; " in out
    assert multirun("seed=1,2", "sweep.guide=quote")[0] == 2
    assert multirun("seed=1,2", "sweep.guide=quote", "sweep.dry_run=true", "sweep.search=batch")[0] == 2
    assert multirun("seed=1,2", "sweep.guide=quote", "sweep.dry_run=true", "mode=predict", "hardware=h200_x1")[0] == 2
    assert not list(tmp_path.iterdir())


def test_a_dry_run_knows_what_is_done(multirun, tmp_path):
    multirun("seed=1", "offload=param")
    assert len(records(tmp_path)) == 1
    shown = multirun("seed=1", "offload=param", "sweep.dry_run=true")[1]
    assert "0 to run in 0 launches, 1 known" in shown and "unsupported" in shown


def test_a_sweep_of_what_means_nothing_is_complete_at_once(multirun, tmp_path):
    code, out = multirun("seed=1,2", "offload=param")
    assert code == 0
    assert "2 points: 2 unsupported" in out and "table: " in out
    for path in records(tmp_path):
        saved = read_json(path)
        hydra = path.parent / ".hydra"
        assert f"seed: {saved['config']['seed']}" in (hydra / "config.yaml").read_text()
        assert f"- seed={saved['config']['seed']}" in (hydra / "overrides.yaml").read_text()
        assert str(path.parent) in (hydra / "hydra.yaml").read_text()
        assert saved["choices"]["offload"] == "param"


SWEPT = (
    *("model=tiny,hf", "zero_stage=zero1,zero3", "seq_len.tokens=8,16", "++model.path=x/y", "offload=param"),
    *(
        "+zero_stage.leaf_module.a={b:[1,2]}",
        "zero_stage.stage3_max_live_parameters=7,8",
        "+zero_stage.zenflow.x='a,b'",
    ),
)


def test_hydra_composes_once_for_each_combination_of_options(multirun, monkeypatch, tmp_path):
    """And what comes of it is what Hydra would have composed for each job alone."""
    composed, words, loaders = [], [], []
    load, batch = ConfigLoaderImpl.load_sweep_config, HydraTask.run_batch

    def counted(self, master, overrides):
        words.append(overrides)
        loaders.append((self, master))
        return load(self, master, overrides)

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counted)

    def kept(task, config, jobs):
        composed.extend(jobs)
        return batch(task, config, jobs)

    monkeypatch.setattr(HydraTask, "run_batch", kept)
    assert multirun(*SWEPT, "sweep.dry_run=true")[0] == 0
    assert len(composed) == 16 and len(words) == 4
    loader, master = loaders[0]
    for number, job in enumerate(composed):
        alone = load(loader, master, OmegaConf.to_container(job.hydra.overrides.task))
        alone.hydra.job.num = alone.hydra.job.id = number  # as Hydra's own launcher does
        assert OmegaConf.to_yaml(job) == OmegaConf.to_yaml(alone)
        assert OmegaConf.to_container(job, resolve=True) == OmegaConf.to_container(alone, resolve=True)
        assert job.hydra.job.override_dirname.count("seq_len.tokens=") == 1


def test_what_cannot_be_composed_is_refused_before_anything_runs(multirun, tmp_path):
    assert multirun("seed=1", "seq_len.tokens=8,x")[0] == 2
    assert not list(tmp_path.rglob("plan.json"))


@pytest.mark.parametrize("words", [["seq_len.tokens=8,x"], ["sweep.prune=true,false"]])
def test_a_refused_sweep_leaves_nothing(multirun, tmp_path, words):
    assert multirun("data.path=/x/sesame", *words)[0] == 2
    assert not list(tmp_path.iterdir())


def test_the_points_of_a_study_are_counted_before_they_are_made(multirun, tmp_path):
    """They come from the file, not from the command line."""
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "huge.yaml").write_text(
        "# @package _global_\nhydra:\n  sweeper:\n    params:\n      seq_len.tokens: range(1,1000000000)\n"
    )
    assert multirun("--config-dir", "mine", "+experiment=huge")[0] == 2
    assert not list(tmp_path.glob("outputs/**/*.json"))


def test_the_jobs_of_a_launcher_that_composes_elsewhere_are_looked_at_first(monkeypatch, tmp_path):
    """Before anything is written: submitit's jobs compose on another machine."""
    Plugins.instance()  # loads all plugins, anew if they were imported before: hence the late import
    from hydra_plugins.memlab_launcher.launcher import MemlabLauncher, MemlabSweeper

    happened = []

    def launch(batch, initial_job_idx):
        happened.append((initial_job_idx, batch))
        return [JobReturn(status=JobStatus.COMPLETED)]

    monkeypatch.setattr(compose, "compose_batch", lambda loader, config, batch: batch)
    monkeypatch.setattr(experiments, "jobs_of_sweep", lambda config, jobs: happened.append(("check", jobs)))
    monkeypatch.setattr(experiments, "begin_sweep", lambda config: happened.append(("begin",)))
    for launcher in (MemlabLauncher(), BasicLauncher()):
        monkeypatch.setattr(launcher, "launch", launch)
        sweeper = MemlabSweeper(max_batch_size=1)
        sweeper.launcher, sweeper.config = launcher, None
        sweeper.hydra_context = SimpleNamespace(config_loader=None)
        sweeper.sweep(["seed=1,2"])
    launched = [(0, [["seed=1"]]), (1, [["seed=2"]])]
    checked = [("check", [["seed=1"], ["seed=2"]]), ("begin",)]
    assert happened == [*launched, *checked, *launched]


BASIC = ("hydra/launcher=basic", "hydra.sweep.dir=place")
OTHERS = {
    "launcher": BASIC,
    "sweeper": (*BASIC, "hydra/sweeper=basic"),
    "processes": ("hydra/launcher=submitit_local", "hydra.sweep.dir=place"),
}


@pytest.mark.parametrize("other", ["launcher", "sweeper", pytest.param("processes", marks=pytest.mark.long(20))])
def test_a_sweep_leaves_table_and_page_whatever_launcher_and_sweeper_ran(multirun, tmp_path, other):
    if other == "processes":
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    for _ in range(2):  # the second finds the records
        _, out = multirun("seed=1,2", "offload=param", "mode=predict", *OTHERS[other])
        assert "2 points; " in out and "table: place/table.csv" in out and "page: " in out
        assert len((tmp_path / "place" / "table.csv").read_text().splitlines()) == 3
        assert (tmp_path / "place" / "report.html").exists()


def test_a_sweep_may_give_a_value_that_has_no_default(multirun):
    words = ("model=hf", "model.path=/a,/b", "offload=param", "mode=predict")
    code, out = multirun(*words, *BASIC, "hydra/sweeper=basic")
    assert (code, "2 points; " in out) == (0, True)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, ValueError])
def test_table_and_page_are_left_however_a_sweep_ends(multirun, tmp_path, monkeypatch, ending):
    run = experiments.run_single

    def interrupted(job, config):
        if config.seed == 2:
            raise ending
        return run(job, config)

    monkeypatch.setattr(experiments, "run_single", interrupted)
    code, out = multirun("seed=1,2", "offload=param", *BASIC)
    assert code == {KeyboardInterrupt: 130, SystemExit: 0, ValueError: 70}[ending]
    assert "1 point; " in out and len((tmp_path / "place" / "table.csv").read_text().splitlines()) == 2


def test_a_bug_in_a_sweep_is_no_mistake_of_the_user(multirun, monkeypatch):
    def broken(*_):
        raise ValueError("a bug")

    monkeypatch.setattr(experiments, "run_jobs", broken)
    assert multirun("seed=1,2", "offload=param")[0] == 70


def test_what_a_job_of_another_launcher_raises_is_raised(monkeypatch, capsys):
    Plugins.instance()
    from hydra_plugins.memlab_launcher.launcher import MemlabSweeper

    failed = JobReturn(status=JobStatus.FAILED, _return_value=ValueError("odd"))
    sweeper = MemlabSweeper(max_batch_size=None)
    sweeper.launcher = SimpleNamespace(launch=lambda batch, initial_job_idx: [failed])
    sweeper.hydra_context = SimpleNamespace(config_loader=None)
    monkeypatch.setattr(sweeper, "begin", lambda batches: None)
    with pytest.raises(ValueError, match="odd"):
        sweeper.sweep(["seed=1"])


@pytest.mark.parametrize("words", [["data=jsonl", "data.path=/nowhere"], ["model.overrides.hiden_size=5"]])
def test_a_sweep_by_another_launcher_is_refused_as_early(multirun, tmp_path, words):
    assert multirun("hydra/launcher=basic", "seed=1,2", *words)[0] == 2
    assert not list(tmp_path.iterdir())


def test_repeats_that_a_file_asks_for_are_counted(multirun, tmp_path):
    (tmp_path / "mine" / "measure").mkdir(parents=True)
    (tmp_path / "mine" / "measure" / "often.yaml").write_text("repeats: 6000\n")
    assert multirun("--config-dir", "mine", "measure=often", "seed=1,2", "sweep.dry_run=true")[0] == 2
    assert not list(tmp_path.glob("outputs"))


def test_a_secret_among_the_words_reaches_no_file_of_a_sweep(multirun, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "open-sesame")
    multirun("seed=1", "offload=param", "data.path=/x/open-sesame")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 8
    assert not [str(path) for path in files if "sesame" in path.read_text()]


def test_a_sweep_into_a_folder_of_ones_own(multirun, tmp_path):
    multirun("seed=1,2", "offload=param", "hydra.sweep.dir=mine", "hydra.sweep.subdir='${seed}'")
    assert [RunFolder(tmp_path / "mine" / seed).read_record().config.seed for seed in "12"] == [1, 2]


def test_groups_and_keys_of_ones_own_are_swept_and_recorded(multirun, tmp_path):
    (tmp_path / "my" / "schedule").mkdir(parents=True)
    for name, rate in (("slow", 0.1), ("fast", 0.5)):
        (tmp_path / "my" / "schedule" / f"{name}.yaml").write_text(f"rate: {rate}\n")
    code, out = multirun("--config-dir", "my", "+schedule=slow,fast", "+note=7", "offload=param")
    assert code == 0 and "schedule.rate" in out
    found = {path.parent.name: RunFolder(path.parent).read_record() for path in records(tmp_path)}
    assert sorted(record.choices["schedule"] for record in found.values()) == ["fast", "slow"]
    for name, record in found.items():
        rate = {"slow": 0.1, "fast": 0.5}[record.choices["schedule"]]
        assert record.config.own == {"schedule": {"rate": rate}, "note": 7} and f"-rate_{rate}_note_7-" in name


@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=basic"]])
def test_points_can_be_named_by_their_number(multirun, tmp_path, launcher):
    name = "hydra.sweep.subdir='${hydra.job.num}-${hydra.job.id}-${hydra.job.override_dirname}'"
    words = ["seed=7,8", "hydra.job.config.override_dirname.exclude_keys=[name,offload,hardware]", name]
    multirun("offload=param", *words, *launcher)
    assert [path.parent.name for path in records(tmp_path)] == ["0-0-seed=7", "1-1-seed=8"]


@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=basic"]])
def test_two_points_cannot_share_a_folder(multirun, tmp_path, capfd, launcher):
    assert multirun("seed=7,8", "offload=param", "hydra.sweep.subdir=same", *launcher)[0] == 2
    assert not list(tmp_path.iterdir())


def test_a_study_is_a_sweep_without_a_word_of_hydras(multirun, tmp_path):
    code, out = multirun(
        "+experiment=tiny_cpu", "offload=param", "zero_stage=zero1", "seq_len.tokens=8,9", multirun=False
    )
    assert code == 0 and "4 points: 4 unsupported" in out
    folders = {path.parent.name for path in records(tmp_path)}
    assert (
        len(folders) == 4
        and {path.name for path in (tmp_path / "outputs" / "mine").iterdir() if path.is_dir()} == folders
    )


def test_studies_that_are_sweeps_are_not_swept(multirun, tmp_path):
    assert multirun("+experiment=tiny_cpu,seed_seq_len_8b")[0] == 2
    assert not list(tmp_path.iterdir())


def test_experiments_of_ones_own_are_swept(multirun, tmp_path):
    (tmp_path / "my" / "experiment").mkdir(parents=True)
    for name, seed in (("one", 1), ("two", 2)):
        (tmp_path / "my" / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\nseed: {seed}\n")
    assert multirun("--config-dir", "my", "+experiment=one,two", "offload=param")[0] == 0
    assert sorted(RunFolder(path.parent).read_record().config.seed for path in records(tmp_path)) == [1, 2]


def test_a_single_run_saves_it_for_every_repeat(multirun, tmp_path):
    multirun("offload=param", "measure.repeats=2", multirun=False)
    found = [path.parent / ".hydra" / "config.yaml" for path in records(tmp_path)]
    assert sorted(OmegaConf.load(path).measure.repeat for path in found) == [1, 2]


def test_a_slurm_job_that_unpickles_the_task_knows_the_schema_of_the_configuration():
    code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read()); import hydra.core.config_store as s; "
    code += "print('schema.yaml' in s.ConfigStore.instance().repo)"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(HydraTask()), capture_output=True)
    assert done.stdout == b"True\n", done.stderr
