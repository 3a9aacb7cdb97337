"""A predicted script that holds memory by mistake: ``memlab explain`` calls each mistake by name."""

import gzip
import shutil
import sys
from pathlib import Path

import pytest

from memlab.analyse.explain import findings
from memlab.analyse.explain.explained_run import explain
from memlab.cli.compose import compose_config
from memlab.planner.user_command import predict_command
from memlab.runs.folder import RunFolder
from tests.shadow.same_attribution import LEVELS, same_moments, share_alike

pytestmark = [pytest.mark.shadow, pytest.mark.long(20)]

SCRIPT = Path(__file__).parents[1] / "scripts" / "mistakes.py"
MEASURED = Path(__file__).parents[1] / "data" / "mistakes_h200"
LOGITS = 256 * 4096 * 4  # batch, vocabulary, bytes of float32


@pytest.fixture(scope="module")
def rank(tmp_path_factory):
    config, _ = compose_config(["mode=predict", "hardware=h200_x1"])
    folder = RunFolder(tmp_path_factory.mktemp("mistakes") / "run")
    record = predict_command([sys.executable, str(SCRIPT)], config.hardware, folder, steps=None)
    assert record.status == "ok"
    (rank,) = explain(folder).ranks
    return rank


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The same script on one H200, recorded by ``memlab measure --explain 9``."""
    folder = tmp_path_factory.mktemp("mistakes_h200") / "run"
    shutil.copytree(MEASURED, folder)
    packed = folder / "rank0.memory_snapshot.pickle.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    return explain(RunFolder(folder)).shown


def test_a_measured_run_confirms_the_findings(rank, measured):
    by_name = [
        {(finding.name, finding.subject): (finding.nbytes, finding.times) for finding in findings.findings(each)}
        for each in (rank, measured)
    ]
    assert len(by_name[0]) == 8 and by_name[0] == by_name[1]


def test_a_measured_run_and_its_prediction_attribute_memory_alike(rank, measured):
    peak, phases = same_moments(measured, rank)
    by_kind, by_module, by_line = LEVELS
    assert share_alike([peak], by_kind) == share_alike([peak], by_module) == 1.0
    assert share_alike(phases, by_kind) > 0.99 and share_alike(phases, by_module) > 0.99
    assert share_alike([peak], by_line) > 0.85  # a copied tensor has another operator


def test_mistakes_are_called_by_name(rank):
    found = {(finding.name, finding.subject): finding for finding in findings.findings(rank)}
    head, embedding = 512 * 4096 * 4, 512 * 4096 * 2

    steps = found[findings.GROWS_OVER_STEPS, "logits and loss"]
    assert (steps.nbytes, steps.times, [name for name, _ in steps.parts]) == (LOGITS, 3, ["lm_head"])
    evaluation = found[findings.GROWS_IN_EVALUATION, "logits and loss"]
    assert (evaluation.nbytes, evaluation.times) == (LOGITS, 3)
    beside = found[findings.TRAINS_BESIDE_ADAPTER, "Model"]
    assert beside.nbytes == 4 * embedding  # weights, gradients, two states
    assert found[findings.UPCAST, "Model"].parts == (("lm_head", head),)
    twice = found[findings.MODEL_TWICE, "Model 2"]
    assert "mistakes.py:42" in twice.user_line and ("lm_head", head) in twice.parts
    clones = found[findings.WEIGHTS_CLONED, "Model"]
    assert "mistakes.py:43" in clones.user_line and clones.nbytes > twice.nbytes
    assert dict(found[findings.GRADIENTS_KEPT, "first_evaluate"].parts)["embed"] == embedding
