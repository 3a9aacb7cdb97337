"""Packages that are not installed: flash-attn, and a stand-in of the user's own as the documentation shows it."""

import os
import re
from pathlib import Path

import pytest

from memlab.core.errors import FolderError, ShadowError
from memlab.simulator import own_stand_ins
from memlab.simulator.trace.events import Alloc
from tests.shadow.model_folder import WIDTH, model_folder
from tests.shadow.one_rank import run

pytestmark = [pytest.mark.shadow, pytest.mark.long(8)]

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "your_own_command.md"

SCAN = """
import importlib.metadata, importlib.util, torch
import selective_scan
print("found", selective_scan.__version__, importlib.metadata.version("selective_scan"),
      importlib.util.find_spec("selective_scan") is not None)
hidden = torch.ones(1024, 512, dtype=torch.bfloat16, device="cuda", requires_grad=True)
selective_scan.scan(hidden).sum().backward()
print("gradient", hidden.grad.shape)
"""


def own_folder(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "stand_ins"
    folder.mkdir()
    (folder / "selective_scan.py").write_text(text)
    return folder


def documented() -> str:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    return next(block for block in blocks if "stand_ins/selective_scan.py" in block)


def test_the_documented_stand_in_takes_the_place_of_a_package_and_its_operator(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, own_stand_ins.VARIABLE, "")
    own_stand_ins.choose(own_folder(tmp_path, documented()))
    trace, printed = run(tmp_path, SCAN)
    assert "found 1.2.0 1.2.0 True" in printed and "gradient torch.Size([1024, 512])" in printed
    sizes = [event.nbytes for event in trace.events if isinstance(event, Alloc)]
    assert sizes.count(4 * 1024 * 512) == 2  # the workspace, forward and backward
    assert sizes.count(2 * 1024 * 512) >= 3  # the tensor, its result and its gradient


@pytest.mark.parametrize("text", ["x = 1\n", "def stand_in(config, gpu): ...\n"])
def test_a_file_without_a_stand_in_is_named(tmp_path, monkeypatch, text):
    monkeypatch.setitem(os.environ, own_stand_ins.VARIABLE, "")
    own_stand_ins.choose(own_folder(tmp_path, text))
    with pytest.raises(ShadowError, match=r"selective_scan\.py is no stand-in: it has no function stand_in\(gpu\)"):
        run(tmp_path, "import torch\n")


def test_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(FolderError, match=r"holds no stand-ins: files NAME\.py"):
        own_stand_ins.choose(tmp_path)


ATTENTION = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(
    sys.argv[1], attn_implementation="flash_attention_2", device_map={"": 0}, num_hidden_layers=1
)
def kept(mask=None, sample=512):
    before = torch.cuda.memory_allocated()
    places = torch.arange(512, device="cuda").expand(4, -1) % sample
    states = model.model(tokens, attention_mask=mask, position_ids=places, use_cache=False).last_hidden_state
    taken = torch.cuda.memory_allocated() - before
    states.sum().backward()
    model.zero_grad()
    return taken

tokens = torch.randint(3, 900, (4, 512), device="cuda")
mask = torch.ones_like(tokens)
mask[2:, 128:] = 0
kept()  # makes what stays
print("kept", kept(), kept(mask), kept(sample=128))
"""


def test_flash_attention_2_needs_no_flash_attn_and_leaves_padding_out(tmp_path):
    _, printed = run(tmp_path, ATTENTION, arguments=(str(model_folder(tmp_path / "model")),))
    whole, padded, packed = map(int, next(line for line in printed.splitlines() if line.startswith("kept")).split()[1:])
    row = 2 * WIDTH  # bytes of a token in one of the tensors that attention saves, bf16
    tokens, used = 4 * 512, 2 * 512 + 2 * 128
    few = 32 * 1024  # bounds and indices of the samples, and the statistics of the softmax
    assert abs(packed - whole) < few
    # Query, key, value and result have no padding; the input of the projection behind them has.
    assert abs(padded - whole - row * (4 * used - 3 * tokens)) < few
