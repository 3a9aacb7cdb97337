"""Helpers of all tests: configurations without the cost of composing each, golden files, finished runs."""

import json
import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import launches
import pytest

from memlab.cli import compose
from memlab.core.config import Config
from memlab.core.config_values import from_dict, to_dict
from memlab.core.plan import make_plan
from memlab.core.record import Phase, RankResult, Record
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "unit" / "golden"


# nohup and a shell's background jobs leave signals ignored, and children inherit that; tests send them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Each worker of pytest-xdist keeps to its share of the cores: launches on the same ones would wait in turn."""
    worker = getattr(config, "workerinput", None)
    if worker:
        cores = sorted(os.sched_getaffinity(0))
        mine = cores[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]
        os.sched_setaffinity(0, mine or cores)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew in place of comparing")


def pytest_collection_modifyitems(items):
    items.sort(key=launches.turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with launches.lock(item):
        return (yield)


@cache
def compose_once(*words: str) -> tuple[dict[str, Any], dict[str, str]]:
    config, choices = compose.compose_config(words)
    return to_dict(config), choices


@pytest.fixture
def composed():
    """``composed("zero_stage=zero3", ...)``: the configuration and the choices of these words."""

    def build(*words: str) -> tuple[Config, dict[str, str]]:
        values, choices = compose_once(*words)
        return from_dict(json.loads(json.dumps(values))), dict(choices)

    return build


@pytest.fixture
def config():
    """``config({"zero_stage.stage": 3})``: the defaults on two CPU ranks, with values replaced and checked."""

    def build(changes: dict[str, Any] | None = None) -> Config:
        values = json.loads(json.dumps(compose_once("hardware=cpu")[0]))
        for dotted, value in (changes or {}).items():
            *parents, key = dotted.split(".")
            place = values
            for parent in parents:
                place = place[parent]
            place[key] = value
        return from_dict(values)

    return build


@pytest.fixture
def golden(request):
    """``golden(name, values, advice)``: ``values`` are those of the committed file, or the test fails with advice."""

    def check(name: str, values: Any, advice: str) -> None:
        path = GOLDEN / name
        text = json.dumps(values, indent=2, sort_keys=True) + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path.relative_to(ROOT)} is not there: run pytest --update-golden and commit it."
        advice = f"{path.relative_to(ROOT)}: {advice} If the change is meant, run pytest --update-golden and commit it."
        assert json.loads(text) == json.loads(path.read_text()), advice

    return check


@pytest.fixture
def rank():
    """``rank(0, status="failed")``: what a rank's file holds, of a rank that measured everything on a GPU."""

    def build(number: int, **changes: Any) -> dict[str, Any]:
        result = RankResult(
            rank=number,
            device=f"cuda:{number}",
            device_name="NVIDIA H200",
            memory_source="cuda_caching_allocator",
            peak_allocated_bytes=2 * 2**30,
            peak_active_bytes=2 * 2**30,
            peak_reserved_bytes=3 * 2**30,
            device_used_bytes=4 * 2**30,
            process_used_bytes=4 * 2**30,
            host_peak_bytes=2**30,
            host_pinned_bytes=2**20,
            num_alloc_retries=0,
            num_ooms=0,
            phases={"forward": Phase(2 * 2**30, 3 * 2**30, 2**30), "first_forward": Phase(2**30, 2**30, 2**30)},
            step_seconds=[0.5, 0.4, 0.6],
            warmup_seconds=[2.0, 0.5],
            losses=[7.0, 6.9, 6.8, 6.7, 6.5],
            skipped_steps=0,
            energy_joules=300.0,
            parameters=1000,
            trainable_parameters=900,
            model_flops_per_step=1e12,
            runtime={"cuda": "13.0"},
            timing={"launch_s": 1.0, "train_s": 2.0},
        )
        return {**result.to_json(), **changes}

    return build


@pytest.fixture
def record(config, rank):
    """``record(status="failed")``: a record that could have been measured."""

    def build(**changes: Any) -> Record:
        values = {
            "run_id": "tiny-zero2-s512-b1-2xH200-0123abcd",
            "source": "measured",
            "status": "ok",
            "config": config(),
            "choices": {"model": "tiny"},
            "fingerprint": "0123456789abcdef",
            "ranks": [rank(0), rank(1)],
            "steps": {"seconds": [0.5, 0.4, 0.6]},
            "summary": {
                "step_seconds": 0.5,
                "step_seconds_min": 0.4,
                "step_seconds_max": 0.6,
                "iterations_per_second": 2.0,
                "samples_per_second": 4.0,
                "tokens_per_second": 2048.0,
            },
            "timing": {"launch_s": 1.0, "train_s": 2.0, "total_s": 12.0},
        }
        return Record(**{**values, **changes})

    return build


@pytest.fixture
def job(config, tmp_path) -> Callable[..., Job]:
    """``job({"seq_len.tokens": 7})``: a plan with its folder, as Hydra would name it."""

    def build(changes: dict | None = None, name: str | None = None) -> Job:
        plan = make_plan(config(changes), {"model": "tiny"})
        return Job(plan, RunFolder(tmp_path / "runs" / (name or plan.run_id)))

    return build
