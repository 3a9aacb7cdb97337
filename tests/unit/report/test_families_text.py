"""The page of families counts them, and says of each that is not predicted why."""

from memlab.core.record import MODEL_FLOPS
from tools.families.attempts import Attempt, ModelFamily
from tools.families.page import document

VERSIONS = {"torch": "2.8.0", "deepspeed": "0.19.8", "transformers": "5.0.0"}
MAMBA = ModelFamily("mamba", "MambaForCausalLM", {"model_type": "mamba"}, "eager")
BLT = ModelFamily("blt", "BltForCausalLM", {"model_type": "blt"})


def test_rows_and_reasons():
    attempts = [
        Attempt(MAMBA, 46_159_104, 3 << 30, 0.0299, unknown={MODEL_FLOPS: "no formula"}),
        Attempt(BLT, reason="ValueError: a | b\nin /home/x/.venv/lib/python3.11/site-packages/torch/f.py " + "x" * 300),
    ]
    text = document(attempts, ["zero_stage=zero2"], VERSIONS, 60)
    assert "1 of the 2 families" in text and "transformers 5.0.0" in text
    assert "| mamba | MambaForCausalLM | eager | 46,159,104 | 3.000 | 0.0299 | model FLOPs: no formula |" in text
    [row] = [line for line in text.splitlines() if line.startswith("| blt")]
    assert row.startswith("| blt | BltForCausalLM | sdpa | ValueError: a \\| b in torch/f.py xxx")
    assert row.endswith("... |") and len(row) < 300
