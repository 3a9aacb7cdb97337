"""How long generations of transformers are, at both ends: as long as they may be, and as short as they can be."""

import os
import sys

import pytest

from memlab.prediction.run_command import LOG, simulate
from memlab.simulator.trace.trace_format import GENERATION
from tests.shadow.one_rank import NODE

pytestmark = [pytest.mark.shadow, pytest.mark.long(25)]

SCRIPT = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2, eos_token_id=[2, 5], pad_token_id=0)).cuda()
optimizer = torch.optim.SGD(model.parameters())
ids = torch.ones(3, 8, dtype=torch.long, device="cuda")
for name, options in {
    "greedy": {},
    "sampled": {"do_sample": True, "top_k": 10, "top_p": 0.9},
    "new tokens": {"min_new_tokens": 5},
    "length": {"min_length": 12},
    "beams": {"num_beams": 4},
    "early": {"num_beams": 4, "early_stopping": True, "num_return_sequences": 2},
    "sampled beams": {"num_beams": 2, "do_sample": True},
    "beams of a length": {"num_beams": 2, "min_length": 12},
}.items():
    print("-", name, *model.generate(ids, max_new_tokens=20, **options).shape)
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
"""

ROWS = {"early": 6}
SHORTEST = {"new tokens": 8 + 5 + 1, "length": 12 + 1, "beams of a length": 12 + 1}
"""Tokens of the prompt, those that must come first, and the one that ends the generation; elsewhere 8 + 1."""


@pytest.mark.parametrize("other_end", [None, GENERATION])
def test_generations_are_as_long_as_they_may_be_or_as_short_as_they_can_be(tmp_path, other_end):
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, str(tmp_path / "script.py")]
    simulated = simulate(words, NODE, tmp_path, None, os.environ, other_end)
    printed = [line[2:] for line in (tmp_path / LOG).read_text().splitlines() if line.startswith("- ")]
    assert simulated.returncode == 0, simulated.last_words
    assert simulated.traces[0].choices == [GENERATION]
    assert len(printed) == 8
    for line in printed:
        name, rows, length = line.rsplit(" ", 2)
        assert int(rows) == ROWS.get(name, 3), line
        assert int(length) == (8 + 20 if other_end is None else SHORTEST.get(name, 8 + 1)), line
