"""An encoder-decoder (T5) with transformers' Seq2SeqTrainer, evaluated by generation, after run_translation.py."""

from dataclasses import dataclass

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)


@dataclass
class ScriptArguments:
    model: str
    dataset: str
    max_length: int = 256
    dtype: str = "float32"


def main():
    options, training = HfArgumentParser((ScriptArguments, Seq2SeqTrainingArguments)).parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model, dtype=options.dtype)

    def tokenize(rows):
        size = {"truncation": True, "max_length": options.max_length}
        return tokenizer(rows["source"], text_target=rows["target"], **size)

    def exact(prediction):
        """Share of tokens that generation got right, both sides padded to the same length."""
        predicted, labels = prediction.predictions, prediction.label_ids
        length = max(predicted.shape[1], labels.shape[1])
        sides = [np.pad(side, ((0, 0), (0, length - side.shape[1]))) for side in (predicted, labels)]
        return {"exact": float(np.mean(sides[0] == sides[1]))}

    data = load_dataset(options.dataset)
    data = data.map(tokenize, batched=True, remove_columns=["source", "target"])
    trainer = Seq2SeqTrainer(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=data["test"],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=exact if training.predict_with_generate else None,
    )
    trainer.train()
    if training.do_eval:
        trainer.log_metrics("eval", trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
