"""What ends a prediction is one line: where in the script, what cannot be predicted, what can be done."""

import os
import re
import sys

import pytest

from memlab.cli.compose import compose_config
from memlab.core.errors import ShadowError
from memlab.planner.user_command import predict_command
from memlab.prediction.run_command import simulate
from memlab.runs.folder import RunFolder
from tests.shadow.model_folder import model_folder
from tests.shadow.one_rank import NODE, run

pytestmark = [pytest.mark.shadow, pytest.mark.long(8)]

ATTEMPTS = """
import os, sys, tempfile, torch
from huggingface_hub import hf_hub_download
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, GPTQConfig
from memlab.simulator.rank import device
from memlab.simulator.rank.unpredictable import explain

@torch.library.custom_op("mine::scan", mutates_args=())
def scan(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2

def require_xformers():
    raise ImportError("xformers is not available and `attention` is set to it. Please install xformers.")

def of_two_ranks(attempt):
    os.environ["WORLD_SIZE"] = "2"
    try:
        attempt()
    finally:
        del os.environ["WORLD_SIZE"]

def compile_extension():
    raise OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root.")

empty = tempfile.mkdtemp()
with open(empty + "/config.json", "w") as file:
    file.write('{"model_type": "llama"}')
gptq = GPTQConfig(bits=4, dataset="c4", tokenizer=object())
tensor = torch.ones(1 << 20, device="cuda")
ATTEMPTS = {
    "operator": lambda: torch.ops.mine.scan(tensor),
    "package": lambda: __import__("xformers"),
    "library": lambda: require_xformers(),
    "extension": lambda: compile_extension(),
    "model": lambda: AutoModelForCausalLM.from_pretrained("org/model"),
    "tokenizer": lambda: AutoTokenizer.from_pretrained("org/model"),
    "data": lambda: load_dataset("org/data"),
    "quantization": lambda: AutoModelForCausalLM.from_pretrained(sys.argv[1], quantization_config=gptq),
    "values": lambda: torch.nn.utils.rnn.pack_padded_sequence(tensor.view(8, 64, -1), torch.arange(8, 0, -1), True),
    "kernel": lambda: torch.nn.LSTM(4, 4).cuda()(tensor.view(-1, 1, 4)),
    "data parallel": lambda: torch.nn.DataParallel(torch.nn.Linear(4, 4).cuda())(tensor.view(-1, 4)),
    "other GPU": lambda: of_two_ranks(lambda: torch.ones(1 << 20, device="cuda:1")),
    "sparse": lambda: torch.nn.Embedding(9, 4, sparse=True, device="cuda")(tensor[:4].long()).sum().backward(),
    "graph": lambda: torch.cuda.CUDAGraph(),
    "pool": lambda: torch.cuda.MemPool(),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(3, device="cuda")], layout=torch.jagged) * 2,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(3)], device="cuda"),
    "constructor": lambda: torch.cuda.FloatTensor(3, 4),
    "driver": lambda: torch.cuda.list_gpu_processes() and __import__("pynvml").nvmlInit(),
    "choice": lambda: torch.max(torch.ones(8, 4096, device="cuda"), 1, out=(tensor[:8], tensor[:8].long())),
    "file": lambda: open("data/train.bin"),
    "download": lambda: __import__("urllib.request").request.urlopen("https://example.com/data.zip"),
    "weights": lambda: torch.hub.load_state_dict_from_url("https://example.com/resnet.pth"),
    "file of the hub": lambda: hf_hub_download("org/data", "train.bin", repo_type="dataset"),
    "folder": lambda: AutoTokenizer.from_pretrained(empty),
    "simulation": lambda: torch.sin(tensor),
    "no file": lambda: open(""),
    "size": lambda: torch.ones(4).split([(tensor > 2).sum().item(), 1]),
    "own mistake": lambda: tensor @ torch.ones(3, device="cuda"),
}
def unfinished(*arguments):
    return {}["shape"]

unfinished.__code__ = unfinished.__code__.replace(co_filename=device.__file__)
device.recorder.answers[torch.ops.aten.sin.default] = unfinished
for name, attempt in ATTEMPTS.items():
    try:
        attempt()
    except Exception as error:
        print("-", name, "-", explain(error, device.recorder.assumptions.of_sizes))
"""

EXPECTED = {
    "operator": ("operator mine.scan.default has no fake implementation", "torch.library.register_fake", "--stand-ins"),
    "package": ("xformers is not installed", "--stand-ins"),
    "library": ("xformers is not installed", "--stand-ins"),
    "extension": ("compiles CUDA code", "--stand-ins"),
    "model": (
        "org/model is no folder here, and not whole in the Hugging Face cache",
        "hf download org/model --include '*.json'",
    ),
    "tokenizer": (
        "org/model is no folder here, and not whole in the Hugging Face cache",
        "hf download org/model --include '*.json'",
    ),
    "data": ("data set org/data is not in the cache", "datasets.load_dataset('org/data')"),
    "values": ("_pack_padded_sequence.default depends on values", "--stand-ins"),
    "kernel": ("calls a CUDA kernel past its dispatcher", "--stand-ins"),
    "data parallel": ("DataParallel spreads batches over 2 GPUs", "torchrun", "hardware.gpus=1"),
    "other GPU": ("puts others on cuda:1, and a rank has one GPU", "torch.cuda.set_device("),
    "sparse": ("torch.nn.Embedding(sparse=True)", "Predict with sparse=False"),
    "graph": ("torch.cuda.CUDAGraph keeps what it captures in a memory pool of its own", "Predict without it"),
    "pool": ("torch.cuda.MemPool", "Predict without it"),
    "jagged": ("nested (jagged) tensors are not predicted", "padded batches"),
    "nested": ("nested (jagged) tensors are not predicted", "padded batches"),
    "constructor": ("torch.cuda.FloatTensor(...), a deprecated constructor", "device='cuda'"),
    "driver": ("asks NVIDIA's driver about GPUs that are not there", "Leave the call out"),
    "file": ("data/train.bin is not here", "a few samples of the data with the longest among them"),
    "download": ("https://example.com/data.zip is not loaded", "memlab predict --network"),
    "weights": ("resnet.pth is not loaded", "leave the weights out, or save the untrained model's as"),
    "file of the hub": ("train.bin of org/data is not in", "hf download org/data train.bin --repo-type dataset"),
    "folder": ("is not whole: config.json or the files of the tokenizer", "tokenizer are enough"),
    "simulation": ("the simulation of operator aten.sin.default failed (KeyError", "--stand-ins"),
    "choice": ("aten.max.dim_max chooses by unknown values", "--stand-ins"),
    "size": ("(tensor > 2).sum().item() at", "was taken as 0, because only a GPU computes it", "split_with_sizes"),
    "quantization": ("weights quantized by gptq have no stand-in", "BitsAndBytesConfig"),
}


def test_each_line_names_the_place_the_reason_and_the_remedy(tmp_path):
    _, printed = run(tmp_path, ATTEMPTS, arguments=(str(model_folder(tmp_path / "model")),))
    said = dict(line[2:].split(" - ", 1) for line in printed.splitlines() if line.startswith("- "))
    assert said.pop("own mistake") == said.pop("no file") == "None"
    lines = ATTEMPTS.splitlines()
    for name, (reason, *remedies) in EXPECTED.items():
        place, _, explanation = said[name].partition(": ")
        file, _, number = place.rpartition(":")
        line = lines[int(number) - 1]
        assert file.endswith("script.py") and (f'"{name}"' in line or line.strip().startswith("raise"))
        assert reason in explanation
        assert all(remedy in explanation for remedy in remedies)


ANSWERED = """
import torch
large = torch.randn(1 << 14, device="cuda")
print(torch.allclose(large, large * 2), torch.allclose(torch.arange(3.0).cuda(), torch.zeros(3, device="cuda")))
print(torch.cuda.utilization(), torch.cuda.memory_usage(0), torch.cuda.temperature())
import torch.distributed.optim  # which compiles functions with torch.tensor by torch.jit.script
shared = torch.nn.Linear(2048, 2048).share_memory()
print(shared.weight.is_shared(), *(torch.ones(number).share_memory_().is_shared() for number in (1 << 21, 2)))
"""


def test_what_only_asks_is_answered_and_listed(tmp_path):
    trace, printed = run(tmp_path, ANSWERED)
    assert printed.splitlines() == ["True False", "0 0 0", "True True True"]
    assert {line.partition(" at ")[0]: line.rpartition(" was taken ")[2] for line in trace.assumed} == {
        "torch.allclose(large, large * 2)": "as True",
        "torch.cuda.utilization()": "as 0",
        "torch.cuda.memory_usage(0)": "as 0",
        "torch.cuda.temperature()": "as 0",
    }


def test_values_that_a_script_without_a_file_reads_are_listed(tmp_path):
    lines = "import torch\nif torch.randn(1 << 14, device='cuda').sum().item() > 0: print('yes')"
    simulated = simulate([sys.executable, "-c", lines], NODE, tmp_path, None, os.environ)
    (assumed,) = simulated.traces[0].assumed
    assert "at <string>:2 was taken as 1.0" in assumed


def test_the_last_words_of_a_rank_are_that_line(tmp_path):
    with pytest.raises(ShadowError, match=r"script\.py:2: xformers is not installed, .* --stand-ins FOLDER"):
        run(tmp_path, "import torch\nimport xformers\n")


def test_a_crash_of_compiled_code_names_the_line(tmp_path):
    lines = "import ctypes, torch\ntensor = torch.ones(512, device='cuda')\nctypes.memset(tensor.data_ptr(), 0, 4)\n"
    with pytest.raises(ShadowError, match=r"script\.py:3: Segmentation fault in compiled code"):
        run(tmp_path, lines)


EXITS = """
import sys, torch
{before}
optimizer = torch.optim.SGD([torch.ones(4, device="cuda", requires_grad=True)])
optimizer.param_groups[0]["params"][0].sum().backward()
optimizer.step()
{after}
"""


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("", "raise SystemExit(3)", r"script\.py:7: The script ended itself with exit code 3;"),
        ("", "sys.exit('no data')", r"script\.py:7: The script ended itself with exit code 1: no data;"),
        ("raise SystemExit('no data')", "", r"exit code 1: SystemExit: .* exit code 1: no data at .*script\.py:3;"),
        ("import xformers", "", r"simulated GPUs, rank 0: script\.py:3: xformers is not installed"),
    ],
)
def test_a_script_that_ends_itself_failed_at_its_line(tmp_path, monkeypatch, before, after, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(EXITS.format(before=before, after=after))
    config, _ = compose_config(["mode=predict", "hardware=h200_x1"])
    record = predict_command([sys.executable, "script.py"], config.hardware, RunFolder(tmp_path / "run"), steps=None)
    assert record.status == "failed" and re.search(reason, record.reason), record.reason
    assert record.reason.endswith("the script's output is in " + str(tmp_path / "run" / "command.log"))


def test_a_script_that_catches_its_exit_and_trains_has_not_failed(tmp_path):
    caught = "try:\n    raise SystemExit(3)\nexcept SystemExit:\n    pass"
    assert run(tmp_path, EXITS.format(before=caught, after=""))[0].steps
