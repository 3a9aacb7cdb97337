"""A predicted script whose memory grows with each step: its verdict is about its whole run, and names the variable."""

import sys
from pathlib import Path

import pytest

from memlab.analyse.explain import findings
from memlab.analyse.explain.explained_run import explain
from memlab.cli.compose import compose_config
from memlab.cli.exit_codes import exit_code
from memlab.core.record import DOES_NOT_LAST
from memlab.core.sizes import GIB, MIB
from memlab.planner.user_command import predict_command
from memlab.runs.folder import RunFolder
from memlab.simulator.rank.more_steps import holds_earlier_steps
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.trace_format import Trace
from tests.shadow.one_rank import run as run_rank

pytestmark = pytest.mark.shadow

SCRIPT = Path(__file__).parents[1] / "scripts" / "keeps_outputs.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder and the record of the script's prediction."""
    config, _ = compose_config(["mode=predict", "hardware=a100_80g_x1"])
    folder = RunFolder(tmp_path_factory.mktemp("grows") / "run")
    return folder, predict_command([sys.executable, str(SCRIPT)], config.hardware, folder, steps=None)


@pytest.mark.long(10)
def test_a_loop_that_keeps_each_output_does_not_last(run):
    _, record = run
    grown = record.command["growth"]
    assert (record.status, record.summary["verdict"], exit_code(record)) == ("ok", DOES_NOT_LAST, 3)
    assert (grown["bytes_per_step"], grown["last_step"], grown["end_step"]) == (GIB // 4, 46, 400)
    used = record.summary["device_used_bytes"]["max"]
    left = record.ranks[0]["device_total_bytes"] - used
    assert grown["out_of_memory_step"] == 46 + left // (GIB // 4) + 1 < 400
    assert grown["kept_by"]["name"] == "losses" and grown["kept_by"]["where"].endswith("keeps_outputs.py:24")


@pytest.mark.long(10)
def test_explain_names_the_variable_and_the_line_that_keeps_the_outputs(run):
    folder, _ = run
    (finding,) = (each for each in findings.findings(explain(folder).shown) if each.name == findings.GROWS_OVER_STEPS)
    assert finding.grown["kept_by"]["name"] == "losses"
    assert finding.parts[0][1] == GIB // 4


REQUESTED = """
import torch
def made(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
def told():
    print(torch.cuda.memory_stats()["requested_bytes.all.current"], torch.cuda.memory_allocated())
small, medium, large = made(1), made(700), made((12 << 20) + 3)
told()
del medium, large
told()
large = made((13 << 20) + (512 << 10))  # of 14 MiB: the rest of the free block is too small to be split off
told()
"""


@pytest.mark.long(10)
def test_growth_is_judged_by_the_exact_sum_of_the_requests_that_are_alive(tmp_path):
    found = [tuple(map(int, line.split())) for line in run_rank(tmp_path, REQUESTED)[1].splitlines()]
    assert [requested for requested, _ in found] == [1 + 700 + 12 * MIB + 3, 1, 1 + 13 * MIB + MIB // 2]
    assert [allocated for _, allocated in found] == [512 + 1024 + 12 * MIB + 512, 512, 512 + 14 * MIB]


@pytest.mark.parametrize(
    ("kept", "holds"),
    [
        ([1, 1], True),  # the forward pass of the first of two steps
        ([0, 1], False),
        ([0, 1, 1], True),  # the second of three steps
        ([0, 1, 1, 0], True),
        ([0, 1, 0, 0], False),  # what the second step made for good
        ([1, 0, 0], False),
        ([1], False),
    ],
)
def test_more_steps_are_run_if_each_earlier_one_has_left_memory(kept, holds):
    trace = Trace(0, 1, phases=["first_forward", "forward"])
    for step, keeps in enumerate(kept):
        trace.steps.append(len(trace.events))
        trace.events += [BeginPhase(min(step, 1)), Alloc(step, 2 * MIB, 0, 0)]
        if not keeps:
            trace.events.append(Free(step))
    assert holds_earlier_steps(trace) is holds
