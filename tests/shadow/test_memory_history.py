"""A memory history of a GPU, request by request: the shadow run asks for the same blocks in the same order."""

import json
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.simulator.allocator import Options
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.trace_format import Trace
from memlab.training.simulated.shadow_process import TraceKey
from tests.shadow.traced_points import shadow_traces

pytestmark = pytest.mark.shadow

DATA = Path(__file__).parents[1] / "data"
"""``measure.snapshot=true measure=quick`` on an H200: the blocks of a mebibyte or more that two warm-up steps took
(above zero) and freed (below), in bytes."""

CUBLAS = 32 << 20
"""A workspace, which stays. The first comes with the first product, which is in another place in another version of
transformers."""


@pytest.mark.parametrize("name", ["requests_smollm2_135m", "requests_qwen3_moe"])
def test_two_steps_take_and_free_the_same_blocks(tmp_path, name):
    recorded = json.loads((DATA / f"{name}.json").read_text())
    plan = make_plan(*compose_config(["mode=predict", "measure=quick", *recorded["words"]]))
    point = TraceKey(0, 1, plan.config.seq_len.tokens)
    found = blocks(shadow_traces(plan, [point], tmp_path)[point], recorded["minimum_bytes"])
    assert kept(found) == kept(recorded["blocks"]) == 2  # of the forward, and of autograd's own thread
    assert without_first_workspace(found) == without_first_workspace(recorded["blocks"])


def blocks(trace: Trace, minimum: int) -> list[int]:
    """What the steps of a trace take and free."""
    found, sizes, building = [], {}, True
    for event in trace.events:
        if isinstance(event, BeginPhase):
            building = building and trace.phases[event.phase] != "first_forward"
        elif isinstance(event, Alloc):
            sizes[event.key] = Options().round(event.nbytes)
            found.append(0 if building else sizes[event.key])
        elif isinstance(event, Free):
            found.append(0 if building else -sizes[event.key])
    return [nbytes for nbytes in found if abs(nbytes) >= minimum]


def kept(found: list[int]) -> int:
    return found.count(CUBLAS) - found.count(-CUBLAS)


def without_first_workspace(found: list[int]) -> list[int]:
    place = found.index(CUBLAS)
    return found[:place] + found[place + 1 :]
