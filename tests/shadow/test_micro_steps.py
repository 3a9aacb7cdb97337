"""Steps of 8 and 16 micro-steps, traced whole and computed from traces of five: not an event may differ."""

from dataclasses import replace
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.prediction.traces.micro_steps import repeated, with_few
from memlab.simulator.trace.trace_format import Trace
from memlab.training.simulated.shadow_process import Task, TraceKey, run_shadow

pytestmark = [pytest.mark.shadow, pytest.mark.long(25)]

GRID = {
    "zero_stage=zero0 checkpointing=full": 8,
    "zero_stage=zero1 precision.grad_accum_dtype=fp32": 8,
    "zero_stage=zero2": 16,
    "zero_stage=zero2 offload=optimizer": 8,
    "zero_stage=zero3": 16,
    "zero_stage=zero3 offload=all checkpointing=full": 8,
}
"""Words -> micro-steps."""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> dict[str, list[Task]]:
    """For each words all micro-steps and a few, traced in one shadow process."""
    folder = tmp_path_factory.mktemp("traces")
    found = {words: list(pair_of_tasks(words, folder / str(number))) for number, words in enumerate(GRID)}
    assert not run_shadow([task for pair in found.values() for task in pair], folder)
    return found


def pair_of_tasks(words: str, path: Path):
    plan = make_plan(
        *compose_config(
            ["mode=predict", "model=tiny", "hardware=h200_x8", f"batch.accumulation={GRID[words]}", *words.split()]
        )
    )
    for kind, each in (("all", plan), ("few", with_few(plan))):
        yield Task(each, TraceKey(rank=0, micro=2, tokens=96), path.with_suffix(f".{kind}"))


@pytest.mark.parametrize("words", GRID)
def test_many_micro_steps_are_known_from_a_few(words, tasks):
    whole, few = (Trace.load(task.path) for task in tasks[words])
    computed = repeated(few, GRID[words])
    assert replace(computed, seconds=whole.seconds).to_json() == whole.to_json()
