"""A loop of one's own around deepspeed.initialize, with accumulation and a checkpoint."""

import argparse

import deepspeed
import gpt
import torch
from deepspeed.accelerator import get_accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--offload", action="store_true", help="the optimizer on the host")
parser.add_argument("--save")
gpt.add_arguments(parser)
args = parser.parse_args()

config = {
    "train_micro_batch_size_per_gpu": args.batch,
    "gradient_accumulation_steps": args.accumulate,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": args.stage, "overlap_comm": True},
    "steps_per_print": 1,
}
if args.offload:
    config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    config["zero_force_ds_cpu_optimizer"] = False

deepspeed.init_distributed()
get_accelerator().set_device(args.local_rank)
torch.manual_seed(1)
with deepspeed.zero.Init(config_dict_or_path=config, enabled=args.stage == 3):
    model = gpt.from_arguments(args)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

for step in range(args.steps * args.accumulate):
    ids = torch.randint(args.vocab, (args.batch, args.length + 1), device=engine.device)
    loss = engine(ids)
    engine.backward(loss)
    engine.step()
    if engine.global_rank == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
if args.save:
    engine.save_checkpoint(args.save)
torch.distributed.destroy_process_group()
