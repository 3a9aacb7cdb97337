"""A loop of one's own with accelerate: accumulation, clipping, evaluation with gathered losses, and a save."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--dataset", required=True)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--max_length", type=int, default=512)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--output_dir", required=True)


def main():
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
    set_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)

    def collate(rows):
        texts = [row["text"] for row in rows]
        batch = tokenizer(texts, padding=True, truncation=True, max_length=args.max_length, return_tensors="pt")
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        return batch

    data = load_dataset(args.dataset)
    train = DataLoader(data["train"], args.batch, shuffle=True, collate_fn=collate, num_workers=1, pin_memory=True)
    test = DataLoader(data["test"], args.batch, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=args.steps)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)

    model.train()
    step = 0
    for batch in train:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                step += 1
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.print(f"step {step} loss {loss.item():.3f}")
        if step == args.steps:
            break

    model.eval()
    losses = []
    for batch in test:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(**batch).loss.repeat(args.batch)))
    accelerator.print(f"evaluation loss {torch.cat(losses).mean().item():.3f}")

    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained(
        args.output_dir,
        is_main_process=accelerator.is_main_process,
        save_function=accelerator.save,
        state_dict=accelerator.get_state_dict(model),
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
