"""What a sweeper of Hydra that searches, such as Optuna's, is told of each job; and Optuna's itself, where it is.

``make optuna`` makes an environment with hydra-optuna-sweeper, which needs an older Optuna than memlab's users may
have, and runs the last test in it.
"""

import os
import signal
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus

from memlab.cli import main as cli
from memlab.files.conf_files import parse_yaml
from memlab.planner import training_sweep
from memlab.prediction import prediction
from memlab.prediction.time.calibrate import calibrations_of
from memlab.runs.folder import RunFolder

LENGTHS = (8, 4096, 8, 16)  # one of them does not fit, and a search may ask twice
WORDS = ("mode=predict", "hardware=h200_x8", "name=mine")


def predict_one(job):
    """A prediction without a trace: a step takes a second for each token, and 1,000 tokens do not fit."""
    tokens, step = job.config.seq_len.tokens, calibrations_of(job.config).step
    seconds = ("step_seconds", "step_seconds_min", "step_seconds_max", "step_seconds_mean")
    rates = ("iterations_per_second", "samples_per_second", "tokens_per_second")
    steps = {
        "seconds": [tokens],
        "basis": "calibrated",
        "error": step and step.error,
        "calibration": step and step.digest,
    }
    if tokens > 1000:
        outcome = {"status": "gpu_oom", "reason": "no memory", "steps": steps}
    elif job.config.seed == 13:
        outcome = {"status": "failed", "reason": "no such layer"}
    else:
        figures = dict.fromkeys(seconds, float(tokens)) | dict.fromkeys(rates, 1.0)
        sizes = {"peak_reserved_bytes": {"max": tokens, "mean": tokens, "min": tokens}}
        outcome = {"status": "ok", "steps": steps, "summary": {**figures, **sizes, "verdict": "fits"}}
    job.start([])
    job.folder.finish(prediction._record(job.plan, **outcome))
    return job.folder.read_record()


@pytest.fixture
def told(tmp_path, monkeypatch, capfd):
    """``told("objective=step_seconds")``: what another sweeper is told of :data:`LENGTHS`, in two batches."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(training_sweep, "predict_one", predict_one)
    monkeypatch.setattr(training_sweep, "next_tasks", lambda plans: [])
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.chdir(tmp_path)
    returned = []

    def sweep(sweeper, arguments):
        for batch in (LENGTHS[:3], LENGTHS[3:]):
            words = [[*arguments, f"seq_len.tokens={tokens}"] for tokens in batch]
            returned.extend(sweeper.launcher.launch(words, initial_job_idx=len(returned)))

    sweepers = Plugins.instance().class_name_to_class  # Hydra imports plugins on its own
    monkeypatch.setattr(sweepers["hydra_plugins.memlab_launcher.launcher.MemlabSweeper"], "sweep", sweep)

    def run(*words):
        returned.clear()
        monkeypatch.setattr(sys, "argv", ["launch.py", "-m", *WORDS, *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.launch()
        return left.value.code or 0, list(returned), "".join(capfd.readouterr())

    return run


def test_every_job_returns_its_objective_in_order_and_a_resumed_one_from_its_record(told, monkeypatch):
    def values(name):
        return [one.return_value for one in told(f"objective={name}")[1]]

    assert values("step_seconds") == [8.0, inf, 8.0, 16.0]
    monkeypatch.setattr(training_sweep, "predict_one", lambda job: 1 / 0)
    assert values("step_seconds") == [8.0, inf, 8.0, 16.0]
    assert values("peak_reserved_bytes") == [8.0, inf, 8.0, 16.0]
    free, none, again, less = values("free_bytes")
    assert none == -inf and again == free == less + 8 > 100 * 2**30
    assert [one.return_value for one in told()[1]] == [None] * 4
    assert [one.return_value for one in told("objective=step_seconds", "sweep.dry_run=true")[1]] == [None] * 4


def test_the_objective_of_repeats_is_their_median(told):
    assert [one.return_value for one in told("objective=step_seconds", "measure.repeats=2")[1]] == [8.0, inf, 8.0, 16.0]


def test_a_job_that_failed_is_a_failed_job_of_the_sweeper(told):
    code, returned, _ = told("objective=step_seconds", "seed=13")
    assert code == 1 and [one.status is JobStatus.FAILED for one in returned] == [True, False, True, True]
    assert "seed=13" in returned[0].overrides
    with pytest.raises(Exception, match=r"ended as failed: .*no such layer"):
        _ = returned[0].return_value


def test_an_interrupt_ends_a_sweep_of_several_batches(told, monkeypatch):
    monkeypatch.setattr("memlab.cli.experiments._sweep_exit_code", lambda *_: 130)
    assert told()[:2] == (130, [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["objective=step_seconds", "hardware=a10g_x1"], "lower bound is known (no calibration for NVIDIA A10G)"),
        (
            ["objective=usd_per_million_tokens", "training=command", "training.command='echo {seq_len.tokens}'"],
            "is known (the script's own time",
        ),
        (["objective=step_seconds", "sweep.search=batch", "mode=measure"], "sweep.search finds a size"),
        (["objective=speed"], "usd_per_million_tokens"),
    ],
)
def test_an_objective_that_cannot_be_ranked_is_refused_before_anything_runs(told, tmp_path, words, message):
    code, _, shown = told(*words)
    assert code == 2 and message in shown and "unexpected" not in shown
    assert not list(tmp_path.rglob("record.json"))


OPTUNA = os.environ.get("MEMLAB_OPTUNA_PYTHON")

SPACE = ("zero_stage=zero2,zero3", "checkpointing=none,full", "seq_len.tokens=128,512", "batch.micro=1,2,4,8,16,32")


@pytest.mark.skipif(not OPTUNA, reason="make optuna")
@pytest.mark.long(120)
def test_twenty_trials_of_optuna_find_what_the_whole_grid_finds(tmp_path):
    """On a GPU that is too small for half of the points. The trials resume from the records of the grid."""
    launch = [OPTUNA, str(Path(__file__).parents[3] / "launch.py"), "-m", *WORDS, *SPACE, "hardware.gpus=2"]
    launch += ["hardware.memory_gib=3", "objective=usd_per_million_tokens"]
    sampler = {"seed": 1, "multivariate": True, "n_startup_trials": 5}  # by default ten of the twenty are random
    trials = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=20", "hydra.sweeper.n_jobs=1"]
    for words in ([], [*trials, *(f"hydra.sweeper.sampler.{key}={value}" for key, value in sampler.items())]):
        subprocess.run([*launch, *words], cwd=tmp_path, check=True, env={**os.environ, "COLUMNS": "200"})
    folder = tmp_path / "outputs" / "mine"
    records = [RunFolder(path.parent).read_record() for path in folder.glob("*/record.json")]
    fitting = [record for record in records if record.status == "ok"]
    best = min(fitting, key=lambda record: record.summary["usd_per_million_tokens"])
    found = parse_yaml((folder / "optimization_results.yaml").read_text())
    assert len(records) == 48 > len(fitting)
    assert found["best_value"] == best.summary["usd_per_million_tokens"]
