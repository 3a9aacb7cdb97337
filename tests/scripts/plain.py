"""The plainest loop of one's own: PyTorch alone, on one GPU."""

import argparse

import gpt
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", default="float32")
gpt.add_arguments(parser)


def main():
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.set_default_dtype(getattr(torch, args.dtype))
    with torch.device(device):
        model = gpt.from_arguments(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(args.steps):
        ids = torch.randint(args.vocab, (args.batch, args.length + 1), device=device)
        loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
