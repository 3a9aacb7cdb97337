"""transformers.Trainer on texts of different lengths, which writes down its own step times and torch's peaks."""

import tempfile

import torch
from measures_itself import Clock, model_and_rows, read_arguments
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

output, size, blocks = read_arguments()
on_gpu = torch.cuda.is_available()
model, rows, pad = model_and_rows(size, blocks, "cuda" if on_gpu else "cpu")


class Times(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        clock.step()


class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return SequentialSampler(rows)


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, max_steps=blocks.all_steps, learning_rate=1e-5, logging_steps=1000,
        report_to=[], save_strategy="no", use_cpu=not on_gpu, disable_tqdm=True, bf16=on_gpu,
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = InOrder(model, arguments, train_dataset=rows, data_collator=pad, callbacks=[Times()])
    clock = Clock(blocks)
    trainer.train()
clock.write(output)
