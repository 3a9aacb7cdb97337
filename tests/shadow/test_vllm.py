"""vLLM in the trainer's process: what it takes, what it gives back, and how long its completions are."""

import os
import sys

import pytest

from memlab.core.errors import ShadowError
from memlab.prediction.run_command import LOG, simulate
from memlab.simulator.trace.trace_format import DECIDED, GENERATION
from tests.shadow.one_rank import NODE, run

pytestmark = [pytest.mark.shadow, pytest.mark.long(8)]

SLEEPS = """
import importlib.metadata, torch
from vllm import LLM, SamplingParams
used = torch.cuda.memory_reserved
engine = LLM("a/model", gpu_memory_utilization=0.25, enable_sleep_mode=True, max_model_len=64)
whole = used()
engine.sleep(level=2)
asleep = used()
engine.wake_up(tags=["weights"])
engine.wake_up(tags=["kv_cache"])
print("told", whole, asleep, used(), engine.llm_engine.model_config.max_model_len)
parameters = SamplingParams(n=2, max_tokens=20, min_tokens=3, logprobs=0)
for answer in engine.generate([{"prompt_token_ids": [5, 6]}], sampling_params=parameters):
    for one in answer.outputs:
        print("tokens", len(one.token_ids), len(one.logprobs), answer.prompt_token_ids)
"""


@pytest.mark.parametrize(("other_end", "length"), [(None, 20), (GENERATION, 3)])
def test_an_engine_takes_its_share_and_gives_it_back_asleep(tmp_path, other_end, length):
    (tmp_path / "script.py").write_text(SLEEPS)
    simulated = simulate([sys.executable, str(tmp_path / "script.py")], NODE, tmp_path, None, os.environ, other_end)
    printed = (tmp_path / LOG).read_text()
    assert simulated.returncode == 0, simulated.last_words
    quarter = -(-NODE.memory_bytes // 4 >> 21) << 21  # the allocator's segments are multiples of 2 MiB
    assert f"told {quarter} 0 {quarter} 64\n" in printed
    assert printed.count(f"tokens {length} {length} [5, 6]") == 2
    trace = simulated.traces[0]
    assert trace.choices == [GENERATION]
    assert any("vLLM" in line and "not measured" in line and line.endswith(DECIDED) for line in trace.assumed)


def test_an_engine_without_room_refuses_as_vllm_does(tmp_path):
    lines = "import torch, vllm\nkept = torch.empty(40 << 30, dtype=torch.uint8, device='cuda')\nvllm.LLM('a/model')\n"
    with pytest.raises(ShadowError, match=r"vLLM refuses to start: .* gpu_memory_utilization=0.9 asks for 125.10 GiB"):
        run(tmp_path, lines)
