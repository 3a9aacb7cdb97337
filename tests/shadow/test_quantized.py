"""Models in 4 and 8 bits as a command's own BitsAndBytesConfig asks for them, and optimizers with 8-bit states."""

from pathlib import Path

import pytest

from memlab.simulator.constants import CUBLASLT_WORKSPACE, GPU_MODELS
from memlab.simulator.trace.events import HostAlloc
from tests.shadow.model_folder import LAYERS, VOCABULARY, WIDTH, model_folder
from tests.shadow.one_rank import run, run_script

pytestmark = [pytest.mark.shadow, pytest.mark.long(12)]

SCRIPT = Path(__file__).parents[1] / "scripts" / "quantized.py"
LINEAR = LAYERS * 7 * WIDTH * WIDTH  # elements: four projections of attention and three of the feed-forward block
OTHER = 2 * (2 * VOCABULARY * WIDTH + (2 * LAYERS + 1) * WIDTH)  # bytes: embedding, head and norms in bf16

LOADED = """
import sys, torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
config = BitsAndBytesConfig(**{options})
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], quantization_config=config)
print("loaded", torch.cuda.memory_allocated(), model.get_memory_footprint())
"""


def loaded_bytes(tmp_path: Path, options: str, **changes) -> int:
    lines = LOADED.replace("{options}", options)
    _, printed = run(tmp_path, lines, arguments=(str(model_folder(tmp_path / "model", **changes)),))
    return int(next(line for line in printed.splitlines() if line.startswith("loaded")).split()[1])


def test_4_bits_take_half_a_byte_and_a_scale_for_each_64_weights(tmp_path):
    expected = OTHER + LINEAR // 2 + 4 * LINEAR // 64  # float32 scales
    assert expected <= loaded_bytes(tmp_path, "dict(load_in_4bit=True)") <= expected + LAYERS * 7 * 1024  # code tables


def test_8_bits_take_a_byte_and_a_scale_for_each_row(tmp_path):
    expected = OTHER + LINEAR + 4 * LAYERS * 7 * WIDTH
    assert loaded_bytes(tmp_path, "dict(load_in_8bit=True)") == pytest.approx(expected, abs=LAYERS * 7 * 512)


COPIED = """
import copy, torch
import bitsandbytes as bnb
layer = bnb.nn.Linear4bit(1024, 512, bias=False, compress_statistics=False)
early = copy.deepcopy(layer)
layer.cuda()
before = torch.cuda.memory_allocated()
weight = copy.deepcopy(layer.weight)
print("copy", torch.cuda.memory_allocated() - before, before)
print("on the host", early.cuda().weight.shape == weight.shape)
print(copy.deepcopy(layer)(torch.ones(4, 1024, device="cuda", dtype=torch.bfloat16)).shape == (4, 512))
"""


def test_a_copy_of_weights_in_4_bits_takes_as_much(tmp_path):
    _, printed = run(tmp_path, COPIED)
    lines = printed[printed.index("copy ") :].splitlines()
    copied, original = map(int, lines[0].split()[1:])
    assert copied == original >= 1024 * 512 // 2 + 4 * 1024 * 512 // 64
    assert lines[1:] == ["on the host True", "True"]


WORKSPACES = """
import torch
import bitsandbytes as bnb
for has_bias in (False, True):
    layer = bnb.nn.Linear4bit(1024, 512, bias=has_bias, compress_statistics=False).cuda()
    for rows in (1, 2048, 2048):
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            layer(torch.ones(rows, 1024, device="cuda", dtype=torch.bfloat16))
        print("kept", torch.cuda.memory_allocated() - before)
"""


def test_a_product_with_a_dequantized_weight_keeps_the_workspaces_of_cublas(tmp_path):
    _, printed = run(tmp_path, WORKSPACES)
    converted = -512 * 2  # bytes of the bias, which the layer's first product converts from float32 to bfloat16
    kept = [int(line.split()[1]) for line in printed.splitlines() if line.startswith("kept")]
    assert kept == [0, GPU_MODELS["H200"].cublas_workspace, 0, converted, CUBLASLT_WORKSPACE, 0]


QUANTIZED = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}

AS_IT_IS = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], device_map={"": 0})
print("loaded", torch.cuda.memory_allocated())
"""


def test_files_in_4_bits_take_as_much(tmp_path):
    folder = model_folder(tmp_path / "model", quantization_config=QUANTIZED)
    _, printed = run(tmp_path, AS_IT_IS, arguments=(str(folder),))
    expected = OTHER + LINEAR // 2 + 4 * LINEAR // 64
    assert expected <= int(printed.split("loaded")[1]) <= expected + LAYERS * 7 * 1024


LIGER = """
import sys, torch
from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import AutoModelForCausalLM
apply_liger_kernel_to_llama()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], device_map={"": 0}, vocab_size=32768).train()
tokens = torch.ones(4, 512, dtype=torch.int64, device="cuda")
before = torch.cuda.memory_allocated()
model(input_ids=tokens, labels=tokens).loss.backward()
print("peak", torch.cuda.max_memory_allocated() - before)
"""


def test_the_fused_loss_of_liger_kernel_makes_no_logits_of_all_tokens(tmp_path):
    _, printed = run(tmp_path, LIGER, arguments=(str(model_folder(tmp_path / "model")),))
    assert int(printed.split("peak")[1]) < 4 * 512 * 32768 * 2  # bytes of the logits in bf16


@pytest.mark.parametrize("bits", ["4", "8"])
def test_adapters_on_quantized_weights_train(tmp_path, bits):
    _, printed = run_script(tmp_path, SCRIPT, ("--model", str(model_folder(tmp_path / "model")), "--bits", bits))
    assert "allocated" in printed


PAGED = """
import bitsandbytes as bnb, torch
weight = torch.nn.Parameter(torch.ones(1024, 1024, device="cuda"))
optimizer = bnb.optim.PagedAdamW8bit([weight])
weight.grad = torch.ones_like(weight)
before = torch.cuda.memory_allocated()
optimizer.step()
print("states", torch.cuda.memory_allocated() - before)
"""


def test_paged_states_are_host_memory(tmp_path):
    trace, printed = run(tmp_path, PAGED)
    states = int(printed.split("states")[1])
    assert states < 2 * 4 * 1024**2 // 256 + 8192  # a float32 scale for each block of 256 elements, and two code tables
    assert [event.nbytes for event in trace.events if isinstance(event, HostAlloc)][-2:] == [1024**2, 1024**2]
