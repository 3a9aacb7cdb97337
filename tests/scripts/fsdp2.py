"""A transformers model sharded with PyTorch's fully_shard (FSDP2) in a loop of one's own, after PyTorch's tutorial."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--length", type=int, default=64)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--save")


def main():
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if args.checkpointing:
        model.gradient_checkpointing_enable()
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        if args.compile:
            layer.compile()
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    texts = torch.randint(config.vocab_size, (args.steps * args.batch, args.length))
    for step, ids in enumerate(DataLoader(texts, args.batch)):
        ids = ids.to(device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    if args.save:
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if dist.get_rank() == 0:
            torch.save(state, args.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
