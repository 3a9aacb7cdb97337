"""``memlab plan`` end to end, on a small model and GPUs that are smaller still."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.planner.parallel import _outlook
from memlab.prediction.prediction import predict
from memlab.prediction.traces import choose_traces
from memlab.simulator.trace.events import Alloc, Event
from memlab.simulator.trace.trace_format import Trace
from memlab.system.deadman import marked_by
from tests.shadow.traced_points import shadow_traces

pytestmark = [pytest.mark.shadow, pytest.mark.long(45)]

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("model=tiny", "hardware=h100_x8", "hardware.gpus=2", "hardware.memory_gib=4")
WALK = ("zero_stage=zero2,zero3", "offload=none", "checkpointing=none")


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("XDG_CACHE_HOME")
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before


def memlab(*words):
    command = [sys.executable, "-c", "from memlab.cli.main import main; main()", *words]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )


def test_the_largest_batch_fits_and_the_next_does_not(tmp_path):
    done = memlab("plan", *WORDS, *WALK, "--csv", str(tmp_path / "plan.csv"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 of 4 configurations fit; ") and "Measure next" in done.stdout
    rows = list(csv.DictReader((tmp_path / "plan.csv").open()))
    assert [(row["zero_stage"], row["allocator"]) for row in rows] == [
        (stage, allocator) for stage in ("zero2", "zero3") for allocator in ("default", "expandable")
    ]
    for row in rows:
        words = [f"{name}={row[name]}" for name in ("zero_stage", "allocator")]
        largest = int(row["largest_batch"])
        fitting, beyond = (prediction(words, micro) for micro in (largest, largest + 1))
        assert fitting.summary["verdict"] == "fits"
        assert beyond.summary["verdict"] != "fits"
        assert max(rank["device_used_bytes"] for rank in fitting.ranks) == int(float(row["device_used_bytes"]))
        assert fitting.summary["fit_probability"] == float(row["fit_probability"])
        outlook, basis = _outlook(make_plan(fitting.config, fitting.choices))
        assert outlook.items() <= fitting.summary.items() and "step_seconds_mean" in outlook and basis == fitting.basis
        assert _outlook(make_plan(beyond.config, beyond.choices))[0]["verdict"] == beyond.summary["verdict"]


def test_a_size_that_is_computed_is_the_one_that_is_traced(tmp_path):
    """The largest batch lies far beyond the traced ones: trace it, and compare."""
    plan = make_plan(*compose_config([*WORDS, "mode=predict", "zero_stage=zero2", "batch.micro=37"]))
    computed = choose_traces.known_traces(plan)
    assert computed is not None, "the walk before left enough traces"
    traced = shadow_traces(plan, choose_traces.keys(plan), tmp_path)
    for point, trace in traced.items():
        assert list(map(_without_site, trace.events)) == list(map(_without_site, computed[point.rank].events))


def _without_site(event: Event) -> tuple:
    return type(event), event._replace(site=0) if isinstance(event, Alloc) else event


def test_what_single_changes_save():
    done = memlab("plan", *WORDS, "zero_stage=zero2", "offload=none", "batch.micro=400", "--changes")
    assert done.returncode == 0, done.stderr
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert done.stdout.startswith("Does not fit: it needs ")
    assert {"checkpointing=full", "batch.micro=200", "zero_stage=zero3", "allocator=expandable"} <= set(lines)


def test_an_interrupted_plan_leaves_no_process_and_keeps_what_is_traced(tmp_path):
    words = ["plan", *WORDS, "zero_stage=zero1,zero2", "checkpointing=none", "allocator=default"]
    command = [sys.executable, "-c", "from memlab.cli.main import main; main()", *words]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("memlab/traces/*/rank*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.decode().splitlines()[-1]) == (130, "memlab: interrupted")
    assert list(marked_by("XDG_CACHE_HOME", str(tmp_path))) == []
    for trace in tmp_path.glob("memlab/traces/*/rank*"):
        Trace.load(trace)


def prediction(words, micro):
    walked = [word for word in WALK if "," not in word]
    return predict(make_plan(*compose_config([*WORDS, *walked, "mode=predict", *words, f"batch.micro={micro}"])))
