"""A loop that keeps each output, 0.25 GiB a step: on a GPU of 80 GiB it runs out of memory near step 310 of 400."""

import argparse

import torch
from torch import nn

WIDTH, BATCH = 1024, 65536

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)


def main():
    args = parser.parse_args()
    model = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(args.steps):
        out = model(torch.randn(BATCH, WIDTH, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(out)


if __name__ == "__main__":
    main()
