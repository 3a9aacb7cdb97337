"""The findings of tests/shadow/test_findings.py, of the same script measured on an H200."""

import tarfile
from pathlib import Path

from memlab.analyse.explain import findings
from memlab.analyse.explain.explained_run import explain
from memlab.runs.folder import RunFolder

MEASURED = Path(__file__).parents[4] / "results" / "explain" / "mistakes.tgz"
LOGITS = 256 * 4096 * 4  # batch, vocabulary, bytes of float32


def test_a_measured_run_confirms_the_findings_of_the_prediction(tmp_path):
    with tarfile.open(MEASURED) as archive:
        archive.extractall(tmp_path, filter="data")
    (rank,) = explain(RunFolder(tmp_path / "mistakes")).ranks
    found = {(finding.name, finding.subject): finding.nbytes for finding in findings.findings(rank)}
    head, embedding, base_layer, adapter = 512 * 4096 * 4, 512 * 4096 * 2, 512 * 512 * 2, 512 * 64 * 2
    assert found == {
        (findings.GROWS_OVER_STEPS, "logits and loss"): LOGITS,
        (findings.GROWS_IN_EVALUATION, "logits and loss"): LOGITS,
        (findings.TRAINS_BESIDE_ADAPTER, "Model"): 4 * embedding,  # weights, gradients, two states
        (findings.UPCAST, "Model"): head,
        (findings.UPCAST, "Model 2"): head,
        (findings.MODEL_TWICE, "Model 2"): head + embedding + 10 * base_layer,
        (findings.WEIGHTS_CLONED, "Model"): head + embedding + 10 * (base_layer + 2 * adapter),
        (findings.GRADIENTS_KEPT, "first_evaluate"): embedding + 10 * 2 * adapter,
    }
