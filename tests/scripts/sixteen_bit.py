"""A language model trained in 16 bits with AdamW of torch alone: weights, gradients and states have one dtype."""

import argparse
from pathlib import Path

import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=Path, required=True, help="a file of conf/model/; its weights are random")
parser.add_argument("--dtype", default="float16")
parser.add_argument("--length", type=int, default=256)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--lora", action="store_true")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--fused", action="store_true", help="AdamW as one kernel, not as a chain of operators")


def main():
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    config = AutoConfig.for_model(**yaml.safe_load(args.model.read_text())["config"])
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, args.dtype))
    if args.lora:
        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    if args.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=args.fused or None)
    for step in range(args.steps):
        ids = torch.randint(config.vocab_size, (1, args.length), device=device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
