"""ResNet-50 (transformers' own) in a plain loop of PyTorch, by default in float32, on one GPU."""

import argparse

import torch
from transformers import ResNetConfig, ResNetForImageClassification

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--size", type=int, default=224, help="pixels of an image's side")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--steps", type=int, default=12)


def main():
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, args.dtype)
    torch.manual_seed(1)
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).to(device, dtype)
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(args.steps):
        images = torch.randn(args.batch, 3, args.size, args.size, device=device, dtype=dtype)
        labels = torch.randint(1000, (args.batch,), device=device)
        loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
