"""A loop that keeps the graph of each step by mistake until memory runs out; with --retry it goes on without them."""

import argparse
import os

import gpt
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--gib", type=float, help="the most that the allocator may hold (default: the whole GPU)")
parser.add_argument("--retry", type=int, default=0, help="how often to catch the out-of-memory, and halve the batch")
gpt.add_arguments(parser)


def main():
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if args.gib:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(args.gib * 2**30 / total, device)
    torch.manual_seed(1)
    model = gpt.from_arguments(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept = []
    step = 0
    while step < args.steps:
        ids = torch.randint(args.vocab, (args.batch, args.length + 1), device=device)
        try:
            loss = model(ids)
            loss.backward(retain_graph=True)  # the graph holds the activations of the step
            optimizer.step()
        except torch.cuda.OutOfMemoryError:
            if not args.retry:
                raise
            args.retry, args.batch = args.retry - 1, args.batch // 2
            loss = None
            kept.clear()
            print(f"out of memory in step {step}, now with a batch of {args.batch}", flush=True)
        else:
            kept.append(loss)
            step += 1
        optimizer.zero_grad()
    print(f"done: {torch.cuda.max_memory_allocated(device)} bytes at the peak", flush=True)


if __name__ == "__main__":
    main()
