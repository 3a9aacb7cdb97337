"""What a program saves without values, it reads again: as tensors of the same sizes, where it asks for them."""

import pytest

from tests.shadow.one_rank import run

pytestmark = pytest.mark.shadow

CHECKPOINT = """
import os, sys, torch
from safetensors.torch import load_file, load_model, save_file, save_model
folder = sys.argv[1]
model = torch.nn.Linear(2048, 2048, device="cuda")
flat = torch.empty(1 << 20, device="cuda")
state = {"model": model.state_dict(), "halves": flat.chunk(2), "step": torch.tensor(7, device="cuda"), "name": "mine"}
torch.save(state, folder + "/state.pt")
del flat, state
before = torch.cuda.memory_allocated()
state = torch.load(folder + "/state.pt")
print(state["model"]["weight"].shape, state["model"]["weight"].device, state["step"].item(), state["name"])
print(state["halves"][0].untyped_storage().data_ptr() == state["halves"][1].untyped_storage().data_ptr())
print(torch.cuda.memory_allocated() - before >> 20)
print({tensor.device.type for tensor in torch.load(folder + "/state.pt", map_location="cpu")["model"].values()})
print({tensor.device.type for tensor in torch.load(folder + "/state.pt", lambda storage, place: storage)["halves"]})
model.load_state_dict(state["model"])
save_file(model.state_dict(), folder + "/model.safetensors", {"format": "pt"})
print({name: tuple(tensor.shape) for name, tensor in load_file(folder + "/model.safetensors").items()})
file = os.stat(folder + "/model.safetensors")
print(file.st_size >> 20, file.st_blocks * 512 >> 20)
tied = torch.nn.Sequential(torch.nn.Embedding(2048, 2048), torch.nn.Linear(2048, 2048, bias=False)).cuda()
tied[1].weight = tied[0].weight
save_model(tied, folder + "/tied.safetensors")
print(os.stat(folder + "/tied.safetensors").st_size >> 20, *load_file(folder + "/tied.safetensors"))
load_model(tied, folder + "/tied.safetensors")
"""


def test_a_checkpoint_is_read_again_with_its_sizes_devices_and_shared_memory(tmp_path):
    _, printed = run(tmp_path, CHECKPOINT, arguments=(str(tmp_path),))
    assert printed.splitlines() == [
        "torch.Size([2048, 2048]) cuda:0 7 mine",
        "True",
        "20",
        "{'cpu'}",
        "{'cpu'}",
        "{'bias': (2048,), 'weight': (2048, 2048)}",
        "16 0",
        "16 0.weight",
    ]
