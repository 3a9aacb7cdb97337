"""Generations with computed decoding steps: not an event, and no work, may differ from those whose steps are traced."""

import os
import re
import sys

import pytest

from memlab.prediction.run_command import LOG, simulate
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import KernelLaunch
from tests.shadow.one_rank import NODE

pytestmark = [pytest.mark.shadow, pytest.mark.long(80)]

SCRIPT = """
import sys
import torch
from transformers import GenerationMixin, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

if sys.argv[1] == "traced":
    GenerationMixin._sample = GenerationMixin._sample.__wrapped__

shape = dict(vocab_size=5000, hidden_size=256, intermediate_size=300, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, eos_token_id=2, pad_token_id=0)
model = LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16).cuda()
sliding = MistralForCausalLM(MistralConfig(**shape, sliding_window=16)).to(torch.bfloat16).cuda()
optimizer = torch.optim.SGD(model.parameters())
traced = 0

def count(*_):
    global traced
    traced += 1

model.register_forward_pre_hook(count)
sliding.register_forward_pre_hook(count)
ids = torch.ones(3, 8, dtype=torch.long, device="cuda")
padded = {"attention_mask": torch.ones_like(ids).index_fill_(1, torch.tensor([0, 1], device="cuda"), 0)}
for step in range(2):
    for name, generating, options in (
        ("whole", model, {}),
        ("padded", model, {**padded, "do_sample": True, "return_dict_in_generate": True, "output_scores": True}),
        ("without cache", model, {"use_cache": False}),
        ("sliding", sliding, {}),
    )[: 4 - 2 * step]:
        traced = 0
        with torch.inference_mode(name == "padded"):
            out = generating.generate(ids, max_new_tokens=40, **options)
        if name == "padded":
            assert len(out.scores) == 40 and out.past_key_values.layers[0].keys.shape == (3, 4, 47, 64)
            out = out.sequences
        print("-", name, traced, *out.shape)
    del out
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TRACED = [("whole", 11), ("padded", 19), ("without cache", 11), ("sliding", 40), ("whole", 2), ("padded", 2)]
"""Forwards of each generation that are traced: the prompt's, those that are needed to know the others, and every 32nd.
Masks of padded sequences have sizes that are rounded up to multiples of 8. Where a window slides, all are traced."""


@pytest.fixture(scope="module")
def ways(tmp_path_factory) -> dict[str, tuple[Trace, list[tuple[str, int]]]]:
    """The trace of the script, and what it printed, with all steps traced and with computed ones."""
    folder, found = tmp_path_factory.mktemp("generations"), {}
    (folder / "script.py").write_text(SCRIPT)
    for way in ("traced", "computed"):
        simulated = simulate([sys.executable, str(folder / "script.py"), way], NODE, folder, None, os.environ)
        assert simulated.returncode == 0, simulated.last_words
        printed = re.findall(r"^- (.*) (\d+) 3 48$", (folder / LOG).read_text(), re.M)
        found[way] = simulated.traces[0], [(name, int(forwards)) for name, forwards in printed]
    return found


def test_few_steps_are_traced(ways):
    assert ways["traced"][1] == [(name, 40) for name, _ in TRACED]
    assert ways["computed"][1] == TRACED


def test_the_trace_is_that_of_all_steps(ways):
    (every, _), (few, _) = ways["traced"], ways["computed"]
    assert few.events == every.events
    assert [type(event) for event in few.events] == [type(event) for event in every.events]
    for name in ("phases", "sites", "steps", "pieces", "events_before", "appearances", "assumed", "choices", "unknown"):
        assert getattr(few, name) == getattr(every, name), name


def test_the_work_is_that_of_all_steps(ways):
    (every, _), (few, _) = ways["traced"], ways["computed"]
    assert len(every.work) > 2 * 40 * 50
    assert named_work(few) == named_work(every)


def named_work(trace: Trace) -> list[tuple]:
    """The items with their types, and the launchers of kernels in place of their numbers."""
    return [
        (type(item), *item[:-1], trace.launchers[item.launcher] if isinstance(item, KernelLaunch) else item[-1])
        for item in trace.work
    ]
