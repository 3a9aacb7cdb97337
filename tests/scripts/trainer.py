"""A causal language model with transformers' Trainer, after its example run_clm.py: trained, evaluated and saved."""

import logging
from dataclasses import dataclass

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class ScriptArguments:
    model: str
    dataset: str
    max_length: int = 512
    dtype: str = "float32"
    keep_logits: bool = False
    resume: bool = False


def accuracy(prediction):
    """Share of tokens that the model predicts; labels are shifted by one."""
    predicted, labels = prediction.predictions[:, :-1], prediction.label_ids[:, 1:]
    if predicted.ndim == 3:
        predicted = predicted.argmax(-1)
    mask = labels != -100
    return {"accuracy": float(np.mean((predicted == labels)[mask]))}


def main():
    options, training = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO if training.process_index == 0 else logging.WARNING)
    set_seed(training.seed)

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype)

    def tokenize(rows):
        return tokenizer(rows["text"], truncation=True, max_length=options.max_length)

    data = load_dataset(options.dataset)
    with training.main_process_first(desc="tokenize"):
        data = data.map(tokenize, batched=True, remove_columns=["text"])

    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=data["test"],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=None if options.keep_logits else lambda logits, labels: logits.argmax(-1),
    )
    checkpoint = get_last_checkpoint(training.output_dir) if options.resume else None
    trainer.train(resume_from_checkpoint=checkpoint)
    if training.do_eval:
        trainer.log_metrics("eval", trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
