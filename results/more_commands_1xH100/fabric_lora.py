"""Train a LoRA of a language model through Lightning Fabric, on batches of sentences of different lengths."""

import argparse

import torch
from lightning_fabric import Fabric
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM


def sentences(count: int, longest: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(32, longest + 1, (count,), generator=generator)
    return [torch.randint(0, 32_000, (int(length),), generator=generator) for length in lengths]


def together(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.clone()}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("model")
    options.add_argument("--sentences", type=int, default=320)
    options.add_argument("--longest", type=int, default=900)
    options.add_argument("--batch", type=int, default=8)
    args = options.parse_args()
    fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
    fabric.launch()
    fabric.seed_everything(7)
    with fabric.init_module():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model))
    model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    model, optimizer = fabric.setup(model, optimizer)
    loader = DataLoader(
        sentences(args.sentences, args.longest), batch_size=args.batch, shuffle=True, collate_fn=together
    )
    for batch in fabric.setup_dataloaders(loader):
        loss = model(**batch).loss
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
