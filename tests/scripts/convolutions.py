"""Images through convolutions (cuDNN), with an activation of its own as a Triton kernel."""

import torch
import triton
import triton.language as tl
from torch import nn

CHANNELS, SIZE, BATCH, STEPS = 64, 224, 32, 4


@triton.jit
def _square(inputs, outputs, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(inputs + at, mask=at < count)
    tl.store(outputs + at, values * values, mask=at < count)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(inputs)
        outputs = torch.empty_like(inputs)
        _square[(triton.cdiv(inputs.numel(), 1024),)](inputs, outputs, inputs.numel(), BLOCK=1024)
        return outputs

    @staticmethod
    def backward(context, gradients: torch.Tensor) -> torch.Tensor:
        (inputs,) = context.saved_tensors
        return 2 * inputs * gradients


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, CHANNELS, 7, stride=2, padding=3)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.head = nn.Linear(CHANNELS, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.second(Square.apply(self.first(images)))
        return self.head(hidden.mean((2, 3)))


def main() -> None:
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = Images()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        images = torch.randn(BATCH, 3, SIZE, SIZE, device="cuda")
        loss = nn.functional.cross_entropy(model(images), torch.zeros(BATCH, dtype=torch.long, device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
