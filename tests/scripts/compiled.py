"""A loop of one's own with torch.compile: of the model, its blocks, the optimizer's step, or Muon's iteration."""

import argparse

import gpt
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--compile", nargs="*", default=["model"], choices=["model", "method", "blocks", "optimizer"])
parser.add_argument("--mode", default="default")
parser.add_argument("--muon", action="store_true", help="matrices are trained by Muon, whose iteration is compiled")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--breaks", action="store_true", help="each block prints a number, which breaks the graph")
parser.add_argument("--shorter", type=int, default=0, help="tokens by which each step is shorter than the one before")
parser.add_argument("--accumulate", type=int, default=1)
gpt.add_arguments(parser)


class Block(gpt.Block):
    def __init__(self, hidden, heads, args):
        super().__init__(hidden, heads)
        self.dropout, self.breaks = nn.Dropout(args.dropout), args.breaks

    def forward(self, x):
        y = self.dropout(super().forward(x))
        if self.breaks:
            print("norm", x.float().norm().item())
        return x + y


class GPT(gpt.GPT):
    """The GPT of the other scripts with dropout, checkpointing and a count of the right predictions."""

    def __init__(self, args):
        super().__init__(args.hidden, args.layers, args.heads, args.vocab, args.length)
        self.blocks = nn.ModuleList(Block(args.hidden, args.heads, args) for _ in range(args.layers))
        self.checkpointing = args.checkpointing

    def forward(self, ids):
        inputs, labels = ids[:, :-1], ids[:, 1:]
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        logits = self.head(self.norm(x))
        right = (logits.argmax(-1) == labels).sum()
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()), right


@torch.compile
def orthogonal(gradient):
    """Muon's Newton-Schulz iteration, after Keller Jordan's."""
    x = gradient.bfloat16()
    x = x.T if gradient.size(0) > gradient.size(1) else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x.T if gradient.size(0) > gradient.size(1) else x


class Muon(torch.optim.Optimizer):
    def __init__(self, matrices, lr=0.02, momentum=0.95):
        super().__init__(matrices, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for matrix in group["params"]:
                buffer = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                buffer.mul_(group["momentum"]).add_(matrix.grad)
                matrix.add_(orthogonal(matrix.grad.add(buffer, alpha=group["momentum"])), alpha=-group["lr"])


def main():
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    model = GPT(args).to(device)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4)]
    if args.muon:
        matrices = [each for each in model.blocks.parameters() if each.dim() == 2]
        others = [each for each in model.parameters() if all(each is not one for one in matrices)]
        optimizers = [Muon(matrices), torch.optim.AdamW(others, lr=1e-4)]
    steps = [optimizer.step for optimizer in optimizers]
    if "optimizer" in args.compile:
        steps = [torch.compile(step, mode=args.mode) for step in steps]
    if "blocks" in args.compile:
        for block in model.blocks:
            block.compile(mode=args.mode)
    if "method" in args.compile:
        model.compile(mode=args.mode)
    if "model" in args.compile:
        model = torch.compile(model, mode=args.mode)
    for step in range(args.steps):
        for _ in range(args.accumulate):
            length = args.length - step * args.shorter
            ids = torch.randint(args.vocab, (args.batch, length + 1), device=device)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss, right = model(ids)
            (loss / args.accumulate).backward()
        for each in steps:
            each()
        model.zero_grad()
        print(f"step {step} loss {loss.item():.3f} right {right.item()}", flush=True)


if __name__ == "__main__":
    main()
