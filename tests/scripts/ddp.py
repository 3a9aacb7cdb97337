"""A loop of one's own with PyTorch's DistributedDataParallel and autocast, after PyTorch's tutorial."""

import argparse
import os

import gpt
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--bucket_view", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--save")
gpt.add_arguments(parser)


def main():
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)

    torch.manual_seed(1)
    model = gpt.from_arguments(args).to(device)
    model = DistributedDataParallel(
        model, device_ids=[local_rank] if on_gpu else None, gradient_as_bucket_view=args.bucket_view
    )
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(args.steps):
        for micro_step in range(args.accumulate):
            ids = torch.randint(args.vocab, (args.batch, args.length + 1), device=device)
            model.require_backward_grad_sync = micro_step == args.accumulate - 1
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = model(ids) / args.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item() * args.accumulate:.3f}", flush=True)
    if args.save and rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, args.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
