"""Two GPUs in three ways: layers on both, a teacher on the second one, and a rank that first touches the wrong one.

``python several_gpus.py layers|teacher``, or ``torchrun --nproc_per_node 2 several_gpus.py stray``.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, BATCH, STEPS = 4096, 8, 2048, 4


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)))


class OnBoth(nn.Module):
    """A model whose second half, which is larger, is on the second GPU."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers().to("cuda:0"), nn.Sequential(layers(), layers()).to("cuda:1")

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs).to("cuda:1"))


def train(model: nn.Module, device: str, teacher: nn.Module | None = None) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, device=device)
        outputs = model(inputs)
        targets = torch.zeros_like(outputs)
        if teacher is not None:
            with torch.no_grad():
                targets = teacher(inputs.to("cuda:1")).to(outputs.device)
        loss = nn.functional.mse_loss(outputs, targets)
        loss.backward()
        if dist.is_initialized():
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


def main(way: str) -> None:
    torch.manual_seed(1)
    if way == "layers":
        train(OnBoth(), "cuda:0")
    elif way == "teacher":
        train(layers().to("cuda:0"), "cuda:0", teacher=layers().to("cuda:1"))
    else:
        torch.zeros(1, device="cuda")  # on GPU 0, in every rank: the mistake
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        train(layers().to("cuda"), "cuda")
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
