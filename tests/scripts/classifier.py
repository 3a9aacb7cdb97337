"""Text classification (BERT) with transformers' Trainer, after its example run_classification.py."""

from dataclasses import dataclass

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


@dataclass
class ScriptArguments:
    model: str
    dataset: str
    max_length: int = 512


def accuracy(prediction):
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main():
    options, training = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, dtype="float32")

    def tokenize(rows):
        return tokenizer(rows["text"], truncation=True, max_length=options.max_length)

    data = load_dataset(options.dataset).map(tokenize, batched=True, remove_columns=["text"])
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=data["test"],
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=accuracy,
    )
    trainer.train()
    if training.do_eval:
        trainer.log_metrics("eval", trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
