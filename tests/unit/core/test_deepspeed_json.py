"""Which keys of DeepSpeed are written at which stage. tests/unit/core/test_plan.py holds whole files."""

from dataclasses import asdict

import pytest

from memlab.core.config import ZeroStage
from memlab.core.deepspeed_json import applies
from memlab.core.plan import make_plan


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_key_that_a_stage_reads_is_written_out(config, stage):
    written = make_plan(config({"zero_stage.stage": stage}), {}).deepspeed["zero_optimization"]
    read = {key for key in asdict(ZeroStage()) if applies(key, stage)} - {"zenflow", "leaf_module"}
    assert set(written) == read


def test_only_stage_3_has_the_keys_of_stage_3():
    stage3 = {key for key in asdict(ZeroStage()) if key.startswith("stage3_")}
    assert stage3 and all(applies(key, 3) and not applies(key, 2) for key in stage3)
    assert [key for key in asdict(ZeroStage()) if applies(key, 0)] == ["stage"]
