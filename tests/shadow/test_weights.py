"""``from_pretrained`` without weights: what a model takes on the device, and on the host while it is loaded."""

import json
from pathlib import Path

import pytest

from memlab.prediction.memory.host import host_peak
from memlab.simulator.constants import HOST_PROCESS_BYTES
from tests.shadow.model_folder import CONFIG, model_folder
from tests.shadow.one_rank import run, run_script

pytestmark = [pytest.mark.shadow, pytest.mark.long(10)]

LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 16384}
"""Sizes whose weights are counted on the host, one by one."""

LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], **{options})
numbers = sum(parameter.numel() for parameter in model.parameters())
print("loaded", numbers, torch.cuda.memory_allocated(), model.dtype)
"""


def loaded(tmp_path: Path, options: str) -> tuple[int, int, int]:
    """Return the numbers in the model, its bytes on the device, and the bytes that loading it takes on the host."""
    folder = model_folder(tmp_path / "model", **LARGE)
    trace, printed = run(tmp_path, LOAD.replace("{options}", options), arguments=(str(folder),))
    words = next(line for line in printed.splitlines() if line.startswith("loaded")).split()
    return int(words[1]), int(words[2]), host_peak(trace).process - HOST_PROCESS_BYTES


def test_the_dtype_of_the_configuration_is_the_default_and_nothing_is_copied_on_the_host(tmp_path):
    numbers, device, host = loaded(tmp_path, "{}")
    assert (device, host) == (0, pytest.approx(2 * numbers, rel=0.001))  # the mapped file, whose pages are the weights


def test_another_dtype_takes_its_copy_beside_the_mapped_file(tmp_path):
    numbers, device, host = loaded(tmp_path, "dict(dtype='float32')")
    assert (device, host) == (0, pytest.approx((2 + 4) * numbers, rel=0.001))


def test_a_device_map_loads_through_the_mapped_file(tmp_path):
    numbers, device, host = loaded(tmp_path, "dict(dtype=torch.float32, device_map={'': 0})")
    assert (device, host) == (pytest.approx(4 * numbers, rel=0.001), pytest.approx(2 * numbers, rel=0.001))


ZERO3 = """
import sys, json
import deepspeed
from transformers import AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig
deepspeed.init_distributed()
kept = HfDeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}})
AutoModelForCausalLM.from_pretrained(sys.argv[1])
"""


def test_at_zero3_only_rank_0_reads_the_files(tmp_path):
    folder = model_folder(tmp_path / "model", **LARGE)
    (tmp_path / "zero3.py").write_text(ZERO3)
    traces = [run_script(tmp_path, tmp_path / "zero3.py", (str(folder),), rank)[0] for rank in (0, 1)]
    peaks = [host_peak(trace).process for trace in traces]
    embedding = 2 * LARGE["vocab_size"] * LARGE["hidden_size"]  # bytes, as the head: untied
    assert peaks[0] - peaks[1] > 2 * embedding
    assert peaks[1] - HOST_PROCESS_BYTES < embedding


MODELS = """
import sys, torch
from pathlib import Path
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Mxfp4Config
folder = Path(sys.argv[1])
on_gpu = dict(device_map={"": 0})

def show(name, model):
    kinds = sorted({str(parameter.dtype) for parameter in model.parameters()})
    device = {parameter.device.type for parameter in model.parameters()}
    print(name, *kinds, *device, sum(p.numel() for p in model.parameters()))

show("experts", AutoModelForCausalLM.from_pretrained(folder / "mixtral", **on_gpu))
as_bf16 = Mxfp4Config(dequantize=True)
show("dequantized", AutoModelForCausalLM.from_pretrained(folder / "oss", quantization_config=as_bf16, **on_gpu))
show("cached", AutoModelForCausalLM.from_pretrained("org/small", torch_dtype="auto").cuda())
show("classes", AutoModelForSequenceClassification.from_pretrained(folder / "llama", num_labels=3, **on_gpu))
show("code", AutoModelForCausalLM.from_pretrained(folder / "code", trust_remote_code=True))
base = AutoModelForCausalLM.from_pretrained(folder / "llama", **on_gpu)
show("adapter", PeftModel.from_pretrained(base, folder / "adapter"))
show("bin", AutoModelForCausalLM.from_pretrained(folder / "bin"))
show("weights", AutoModelForCausalLM.from_pretrained(folder / "weights", dtype="float16", **on_gpu))
"""

CODE = """
from transformers import LlamaForCausalLM
class OwnModel(LlamaForCausalLM):
    pass
"""

NAME = "models--org--small"

OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "quantization_config": {"quant_method": "mxfp4"},
}


def test_models_of_many_kinds_are_built_from_their_configurations(tmp_path, monkeypatch):
    from safetensors.torch import save_file
    from torch import bfloat16, empty, save

    experts = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4}
    model_folder(tmp_path / "mixtral", **experts)
    model_folder(tmp_path / "oss", **{**experts, **OSS})
    llama = model_folder(tmp_path / "llama")
    code = model_folder(tmp_path / "code", auto_map={"AutoModelForCausalLM": "modeling_own.OwnModel"})
    (code / "modeling_own.py").write_text(CODE)
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(llama), "r": 8, "target_modules": ["q_proj"]}
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(adapter))
    weights = model_folder(tmp_path / "weights", num_hidden_layers=0)
    width, words = CONFIG["hidden_size"], CONFIG["vocab_size"]
    shapes = {
        "model.embed_tokens.weight": (words, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (words, width),
    }
    tensors = {name: empty(shape, dtype=bfloat16) for name, shape in shapes.items()}
    save_file(tensors, weights / "model.safetensors", metadata={"format": "pt"})
    old = model_folder(tmp_path / "bin", num_hidden_layers=0)
    save(tensors, old / "pytorch_model.bin")
    cached = tmp_path / "home" / "hub" / NAME
    model_folder(cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))

    _, printed = run(tmp_path, MODELS, arguments=(str(tmp_path),))
    found = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if "torch." in line}
    attention, feed_forward, norms = 4 * width**2, 3 * width**2, 2 * width
    blocks = 2 * (attention + feed_forward + norms)
    dense = 2 * words * width + blocks + width
    assert found["cached"] == ["torch.bfloat16", "cuda", str(dense)]
    assert found["code"] == ["torch.bfloat16", "cpu", str(dense)]
    assert found["experts"] == ["torch.bfloat16", "cuda", str(dense + 2 * (3 * feed_forward + 4 * width))]
    assert found["dequantized"][:2] == ["torch.bfloat16", "cuda"]
    assert found["classes"] == ["torch.bfloat16", "cuda", str(dense - words * width + 3 * width)]
    assert found["adapter"] == ["torch.bfloat16", "torch.float32", "cuda", str(dense + 2 * 2 * 8 * width)]
    assert found["bin"] == ["torch.bfloat16", "cpu", str(2 * words * width + width)]
    assert found["weights"] == ["torch.float16", "cuda", str(2 * words * width + width)]
