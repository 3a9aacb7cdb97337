"""A prediction explained at every stage of ZeRO: the parts add up to the byte, and hold what the stage says."""

import pytest

from memlab.analyse.collect import collect
from memlab.analyse.explain.accounting import Share, by_kind
from memlab.analyse.explain.explained_run import explain
from memlab.analyse.explain.table import explained_table
from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.core.sizes import MIB
from memlab.prediction.prediction import predict_one
from memlab.prediction.traces import choose_traces
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job

pytestmark = [pytest.mark.shadow, pytest.mark.long(20)]

STAGES = (0, 1, 2, 3)
GPUS = 4


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The run folder of a prediction at each stage."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        words = ["mode=predict", "model=tiny", "hardware=h200_x8", f"hardware.gpus={GPUS}"]
        plans = [make_plan(*compose_config([*words, f"zero_stage=zero{stage}"])) for stage in STAGES]
        assert not choose_traces.trace_missing(plans)
        for stage, plan in zip(STAGES, plans, strict=True):
            found.append(RunFolder(tmp_path_factory.mktemp(f"zero{stage}")))
            predict_one(Job(plan, found[-1]))
        yield found


@pytest.mark.parametrize("stage", STAGES)
def test_the_parts_add_up_in_every_phase(folders, stage):
    (result, *_) = folders[stage].read_record().ranks
    rank = explain(folders[stage]).ranks[0]
    assert {run.part.phase for run in rank.phases} == set(result["phases"])
    for run in rank.phases:
        phase = result["phases"][run.part.phase]
        assert run.peak.allocated == phase["peak_allocated_bytes"]
        for moment in (run.start, run.peak, run.end):
            whole = rank.used(moment)
            check(whole)
            assert moment.requested + moment.slack.total == moment.reserved
            assert moment.requested + moment.slack.rounding == moment.allocated
            assert whole.nbytes == moment.reserved + sum(share.nbytes for share in rank.device.outside(moment.event))
            assert rank.unexplained(moment) == 0


@pytest.mark.parametrize(("stage", "measured"), [(0, 2101), (1, 2101), (2, 2101), (3, 1811)])
def test_outside_is_what_the_stages_groups_need(folders, stage, measured):
    """Measured: MiB on four H200s, in results/four_gpus_4xH200. ZeRO-3 runs its collectives in one group, the others
    in two."""
    (result, *_) = folders[stage].read_record().ranks
    outside = result["device_used_bytes"] - result["peak_reserved_bytes"]
    assert outside / MIB == pytest.approx(measured, abs=7)
    rank = explain(folders[stage]).ranks[0]
    parts = {share.name: share for share in rank.device.outside(rank.peak.event)}
    assert list(parts) == ["NCCL", "CUDA context", "cuBLAS handles", "kernels and libraries"]
    assert sum(share.nbytes for share in parts.values()) == outside
    assert rank.device.provenance == "measured in results/explain (NVIDIA H200)"


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_stage_shards_is_one_gpus_share(folders, stage):
    """bf16 weights have 2 bytes a parameter; the fp32 master and Adam's two states 4 each.

    Weights are counted before the first step: after it, ZeRO-3 keeps those that are small gathered.
    """
    parameters = folders[stage].read_record().summary["parameters"]
    rank = explain(folders[stage]).ranks[0]
    ends = {run.part.phase: by_kind(run.end.holdings).parts for run in rank.phases}
    at_first, after_step = (
        {share.name: share.nbytes for share in ends[phase]} for phase in ("engine_init", "optimizer_step")
    )
    of_states = parameters / GPUS if stage >= 1 else parameters
    of_weights = parameters / GPUS if stage == 3 else parameters
    assert after_step["optimizer states"] == pytest.approx(8 * of_states, rel=0.01)
    assert after_step["fp32 master weights"] == pytest.approx(4 * of_states, rel=0.01)
    assert at_first["weights"] == pytest.approx(2 * of_weights, rel=0.01)


def test_the_table_has_a_row_for_each_explained_rank(folders):
    frame, problems = explained_table(collect([folder.path for folder in folders]).runs)
    assert not problems and frame["run_id"].nunique() == len(STAGES)
    assert (frame["used_bytes"] == frame["reserved_bytes"] + frame["outside_bytes"]).all()
    assert (frame["reserved_bytes"] == frame["requested_bytes"] + frame["slack_bytes"]).all()
    for whole in ("requested", "outside"):
        parts = [column for column in frame if column.startswith(f"{whole}_") and column != f"{whole}_bytes"]
        assert (frame[parts].sum(axis="columns") == frame[f"{whole}_bytes"]).all()


def check(share: Share) -> None:
    if share.parts:
        assert sum(part.nbytes for part in share.parts) == share.nbytes, share.name
    for part in share.parts:
        check(part)
