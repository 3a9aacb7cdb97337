"""Trainings with computed micro-steps: no event and no work may differ from those whose micro-steps are traced."""

import os
import re
import sys

import pytest

from memlab.prediction.run_command import LOG, simulate
from memlab.simulator.simulation import Node
from memlab.simulator.trace.trace_format import Trace
from tests.shadow.test_decoding_steps import named_work

NODE = Node("NVIDIA H200", 1, 139 << 30)

pytestmark = [pytest.mark.shadow, pytest.mark.long(90)]

SCRIPT = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

way, kind = sys.argv[1:]
if way == "traced":
    Trainer.training_step = Trainer.training_step.__wrapped__
traced = []


class Model(LlamaForCausalLM):
    # Like Qwen2.5-VL, it makes positions sample by sample, and keeps a tensor for a later generation.
    def forward(self, input_ids, attention_mask, labels, **options):
        traced.append(input_ids.shape[1])
        positions = torch.zeros_like(input_ids)
        for row, mask in enumerate(attention_mask):
            positions[row, mask.bool()] = torch.arange(len(input_ids[row][mask.bool()]), device=mask.device)
        self.deltas = torch.tensor([[row.max() + 1] for row in positions], device=positions.device)
        answers = labels[labels > 0]
        if kind == "unlike":
            torch.ones(len(traced) ** 3, 99, device=answers.device)
        options.pop("num_items_in_batch", None)
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, labels=labels, **options
        ) if kind != "answers" else {"loss": self.lm_head(
            self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions)[0][labels > 0]
        ).float().logsumexp(-1).mean() + answers.sum()}


def collate(samples):
    longest = max(len(ids) for ids in samples)
    ids, mask, labels = (torch.full((len(samples), longest), fill) for fill in (0, 0, -100))
    for row, sample in enumerate(samples):
        ids[row, : len(sample)], mask[row, : len(sample)] = torch.tensor(sample), 1
        labels[row, len(sample) // 3 : len(sample)] = 7
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


lengths = [50 + 37 * n * n % 61 for n in range(64)] if kind != "equal" else [70] * 64
model = Model(LlamaConfig(vocab_size=5000, hidden_size=256, intermediate_size=300, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, attn_implementation="eager"))
arguments = TrainingArguments("out", per_device_train_batch_size=2, gradient_accumulation_steps=10, max_steps=3,
    report_to="none", save_strategy="no", bf16=kind == "lengths", gradient_checkpointing=kind == "answers",
    logging_steps=1, remove_unused_columns=False)
Trainer(model, arguments, collate, [[3] * length for length in lengths]).train()
print("- forwards", len(traced))
"""

FORWARDS = {"equal": 5, "lengths": 8, "answers": 8, "unlike": 30}
"""Micro-steps of 30 that are traced: the first one of each of three optimizer steps, and those that are needed
to know the others or have a much larger batch. Where a size follows from no measure of a batch, all are traced."""


@pytest.fixture(scope="module", params=["equal", "lengths", "answers", "unlike"])
def ways(request, tmp_path_factory) -> tuple[str, dict[str, tuple[Trace, int]]]:
    """The trace of a training, and the forwards that ran, with all micro-steps traced and with computed ones."""
    folder, found = tmp_path_factory.mktemp(request.param), {}
    (folder / "script.py").write_text(SCRIPT)
    for way in ("traced", "computed"):
        words = [sys.executable, str(folder / "script.py"), way, request.param]
        simulated = simulate(words, NODE, folder, None, os.environ)
        assert simulated.returncode == 0, simulated.last_words
        forwards = re.findall(r"^- forwards (\d+)$", (folder / LOG).read_text(), re.M)
        found[way] = simulated.traces[0], int(forwards[-1])
    return request.param, found


def test_the_trace_is_that_of_all_micro_steps(ways):
    kind, found = ways
    (every, ran), (few, traced) = found["traced"], found["computed"]
    assert (ran, traced) == (30, FORWARDS[kind])
    assert few.events == every.events
    assert [type(event) for event in few.events] == [type(event) for event in every.events]
    for name in ("phases", "sites", "steps", "pieces", "events_before", "appearances", "assumed", "choices", "unknown"):
        assert getattr(few, name) == getattr(every, name), name
    assert named_work(few) == named_work(every)
    assert len(every.work) > 1000
