"""Predicted sweeps and searches over a user's command, with a stand-in for its shadow processes."""

import sys
import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from memlab.core.config import Config, Sweep
from memlab.core.errors import MemlabError
from memlab.core.plan import make_plan
from memlab.core.record import FITS, Record
from memlab.core.sizes import GIB
from memlab.files.json_file import write_json
from memlab.launch.search import RunningSearch
from memlab.launch.sweep import RunningSweep
from memlab.planner import command_point, command_sweep
from memlab.planner.command_sweep import CommandPredictions, CommandPredictor
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job, SweepObserver

MOST = 40 * GIB
"""Bytes of the stand-in's GPU."""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import torch\n")
    return path


@pytest.fixture
def point(config, script):
    """``point(4)``: the configuration of a micro batch."""

    def build(micro: int = 1, words: str = "", **changes) -> Config:
        command = f"{sys.executable} {script} micro={{batch.micro}} out={{run_dir}} {words}"
        own = {"mode": "predict", "training.loop": "command", "training.command": command, "batch.micro": micro}
        gpu = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "hardware.gpus": 1, "hardware.memory_gib": 141}
        return config({**own, **gpu, "measure.warmup": 2, "measure.steps": 1, **changes})

    return build


@pytest.fixture
def shadow(monkeypatch, rank):
    """Predictions of 4 GiB for each sample. The list holds the micro batches that were run."""
    ran: list[int] = []

    def predicted(run, folder) -> Record:
        words = run.words
        micro = int(words[2].partition("=")[2])
        ran.append(micro)
        used = micro * 4 * GIB
        row = f'{{"step": 1, "samples": {micro}, "largest_micro_batch": {micro}, "micro_batches": 1}}\n'
        folder.step_rows(0).write_text(row)
        script = {"path": "train.py", "cwd": str(Path(words[1]).parent)}
        phases = {"forward": {"peak_allocated_bytes": used, "peak_reserved_bytes": used, "end_allocated_bytes": 0}}
        peaks = dict.fromkeys(("device_used_bytes", "peak_reserved_bytes", "peak_allocated_bytes"), used)
        made = rank(0, **peaks, device_total_bytes=MOST, phases=phases, attached={"script": script, "world_size": 1})
        write_json(folder.rank_file(0), made)
        status = "ok" if used <= MOST else "gpu_oom"
        return Record("", "predicted", status, Config(), {}, "", ranks=[made], command={"words": list(words)})

    monkeypatch.setattr(command_point, "predicted_record", predicted)
    return ran


@dataclass(frozen=True)
class Needed:
    """In place of an estimate. ``used``: what it was made of."""

    verdict: str
    used: tuple


def jobs_of(configs: list[Config], folder: Path) -> list[Job]:
    plans = [make_plan(one, {"model": "tiny", "batch": "b1"}) for one in configs]
    return [Job(plan, RunFolder(folder / plan.run_id)) for plan in plans]


def predicting(options: Sweep, force: bool = False, kind=RunningSweep):
    return kind(CommandPredictions(force), options, SweepObserver())


def sweep(configs: list[Config], folder: Path, force: bool = False, **options):
    return predicting(Sweep(**options), force).run(jobs_of(configs, folder))


def ends(results) -> list[tuple[str, str]]:
    return [(result.how, result.record.status) for result in results]


def test_every_point_has_a_record_of_what_the_script_used(point, shadow, tmp_path):
    first, second = (result.record for result in sweep([point(1), point(2)], tmp_path / "runs"))
    assert sorted(shadow) == [1, 2]
    assert (first.source, second.source, second.config.batch.micro) == ("predicted", "predicted", 2)
    assert second.run_id in second.command["words"][3]  # {run_dir} lies in the point's folder
    assert {"model", "zero_stage"} <= set(second.unknown_config) and "objective" not in second.unknown_config


def test_what_is_predicted_is_not_predicted_again(point, shadow, tmp_path):
    sweep([point(1), point(2)], tmp_path / "runs")
    assert ends(sweep([point(1), point(2)], tmp_path / "runs")) == [("done", "ok")] * 2
    copied = sweep([point(1, name="another")], tmp_path / "others")  # another sweep, the same command
    assert ends(copied) == [("predicted", "ok")] and copied[0].job.folder.rank_file(0).exists()
    assert sorted(shadow) == [1, 2]
    sweep([point(1)], tmp_path / "runs", force=True)
    assert sorted(shadow) == [1, 1, 2]


def test_after_a_copied_prediction_the_memory_of_one_is_still_unknown(point, shadow, tmp_path, monkeypatch):
    sweep([point(1)], tmp_path / "runs")
    no_child = SimpleNamespace(ru_maxrss=0)
    monkeypatch.setattr(command_sweep.resource, "getrusage", lambda whose: no_child)
    assert ends(sweep([point(1), point(2)], tmp_path / "others")) == [("predicted", "ok")] * 2


def test_a_prediction_that_another_memlab_is_keeping_is_not_kept_twice(point, shadow, tmp_path):
    (job,) = jobs_of([point(1)], tmp_path / "runs")
    kept = command_point.kept_folder(job.plan)
    with kept.lock():
        assert ends(sweep([point(1)], tmp_path / "runs")) == [("predicted", "ok")]
    assert not (kept.path / RunFolder.RECORD).exists()
    sweep([point(1)], tmp_path / "others")
    assert kept.read_record().status == "ok"


def test_the_sweeps_of_a_plan_share_what_they_know_of_the_memory_of_a_prediction(point, shadow, tmp_path):
    predictor = CommandPredictor(lambda *told: None)
    for micro in (1, 2):
        predictor.estimates([job.plan for job in jobs_of([point(micro)], tmp_path)])
    assert predictor._slots._ended == 2


def test_what_a_command_needs_that_does_not_fit_is_in_its_traces(point, shadow, tmp_path, monkeypatch):
    """It is not run again on a larger GPU, whose size would be told as that of the real one."""
    monkeypatch.setattr(command_sweep, "traces_in", lambda folder: {0: folder})
    monkeypatch.setattr(
        command_sweep, "estimate", lambda config, traces, calibration, limited: Needed(FITS, (*traces, limited))
    )
    plans = [job.plan for job in jobs_of([point(1), point(16)], tmp_path)]
    small, large = CommandPredictor(lambda *told: None).estimates(plans, limited=False)
    assert small.verdict == "fits"
    assert large == Needed("does_not_fit", (command_point.kept_folder(plans[1]).path, False))
    assert sorted(shadow) == [1, 16]


def test_repeats_of_a_prediction_are_copies(point, shadow, tmp_path):
    repeats = [point(1, **{"measure.repeat": number}) for number in (1, 2, 3)]
    assert len(sweep(repeats, tmp_path / "runs")) == 3 and shadow == [1]


def test_a_changed_script_setting_or_data_file_is_predicted_anew(point, shadow, script, tmp_path):
    data = tmp_path / "train.jsonl"
    data.write_text("{}\n")
    settings = tmp_path / "zero.json"
    settings.write_text("{}")
    one = point(1, f"--data {data} --deepspeed={settings}")
    for changed in (script, settings, data):
        sweep([one], tmp_path / "runs")
        sweep([one], tmp_path / "runs")
        changed.write_text(changed.read_text() + "\n")
    sweep([one], tmp_path / "runs")
    assert len(shadow) == 4


def test_a_module_that_the_script_imported_counts_as_the_script(point, shadow, script, tmp_path, monkeypatch):
    module = script.with_name("model.py")
    module.write_text("layers = 2\n")
    known = command_point.predicted_record

    def importing(*arguments):
        record = known(*arguments)
        record.ranks[0]["attached"]["modules"] = {"model.py": sha256(b"layers = 2\n").hexdigest()}
        return record

    monkeypatch.setattr(command_point, "predicted_record", importing)
    sweep([point(1)], tmp_path / "runs")
    assert ends(sweep([point(1)], tmp_path / "runs")) == [("done", "ok")]
    module.write_text("layers = 3\n")
    assert ends(sweep([point(1)], tmp_path / "runs")) == [("predicted", "ok")] and shadow == [1, 1]


def test_larger_points_are_implied_by_one_that_does_not_fit(point, shadow, tmp_path):
    results = sweep([point(micro) for micro in (4, 16, 32)], tmp_path / "runs")
    assert ends(results) == [("predicted", "ok"), ("predicted", "gpu_oom"), ("implied", "gpu_oom")]
    assert results[2].record.source == "predicted"
    assert ends(sweep([point(32)], tmp_path / "runs", prune=False)) == [("predicted", "gpu_oom")]


def test_a_failure_is_a_record_and_the_others_go_on(point, shadow, tmp_path, monkeypatch):
    known = command_point.predicted_record

    def failing(run, folder):
        if "micro=2" in run.words:
            raise MemlabError("no such launcher")
        return known(run, folder)

    monkeypatch.setattr(command_point, "predicted_record", failing)
    results = sweep([point(1), point(2), point(4)], tmp_path / "runs")
    assert [result.record.status for result in results] == ["ok", "failed", "ok"]
    assert "no such launcher" in results[1].job.folder.read_record().reason


def test_a_limit_of_time_is_recorded(point, tmp_path, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(command_point, "predicted_record", lambda *arguments: never.wait(5))
    (result,) = sweep([point(1, **{"measure.timeout_s": 1})], tmp_path / "runs")
    assert (result.record.status, result.record.reason) == ("timeout", "the script had not ended after 1 s")


def test_an_interrupt_is_recorded_and_the_next_sweep_goes_on_there(point, shadow, tmp_path, monkeypatch):
    known = command_point.predicted_record
    running = predicting(Sweep())

    def interrupted(run, folder):
        if "micro=2" in run.words:
            running.stop.set()
            time.sleep(1)
        return known(run, folder)

    monkeypatch.setattr(command_point, "predicted_record", interrupted)
    results = running.run(jobs_of([point(1), point(2), point(4)], tmp_path / "runs"))
    assert [result.record and result.record.status for result in results] == ["ok", "interrupted", None]
    monkeypatch.setattr(command_point, "predicted_record", known)
    again = sweep([point(1), point(2), point(4)], tmp_path / "runs")
    assert ends(again) == [("done", "ok"), ("predicted", "ok"), ("predicted", "ok")]


@pytest.mark.parametrize("start", [1, 6, 64])
def test_the_largest_batch_is_found_in_few_runs_and_once(point, shadow, tmp_path, start):
    for _ in range(2):
        search = predicting(Sweep(search="batch"), kind=RunningSearch)
        search.run(jobs_of([point(start, **{"sweep.search": "batch"})], tmp_path / "runs"))
        (found,) = search.found.values()
        assert (found.best, found.gave_up, found.fails) == (10, None, 11)
    assert len(shadow) == len(set(shadow)) <= 7


def test_a_cpu_is_refused(point, tmp_path):
    (result,) = sweep([point(1, **{"hardware.device": "cpu"})], tmp_path / "runs")
    assert result.record.status == "unsupported" and "caching allocator" in result.record.reason
