"""Image classification (ViT) with transformers' Trainer, after run_image_classification.py."""

from dataclasses import dataclass

import numpy as np
import torch
from datasets import load_dataset
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


@dataclass
class ScriptArguments:
    model: str
    dataset: str
    dtype: str = "float32"


def collate(rows):
    pixels = torch.stack([torch.as_tensor(row["pixel_values"]) for row in rows])
    return {"pixel_values": pixels, "labels": torch.tensor([row["label"] for row in rows])}


def accuracy(prediction):
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main():
    options, training = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    training.remove_unused_columns = False  # the images are transformed when they are read
    processor = AutoImageProcessor.from_pretrained(options.model)
    model = AutoModelForImageClassification.from_pretrained(options.model, dtype=options.dtype)

    def transform(rows):
        images = [image.convert("RGB") for image in rows["image"]]
        return {"pixel_values": processor(images, return_tensors="pt")["pixel_values"], "label": rows["label"]}

    data = load_dataset("imagefolder", data_dir=options.dataset).with_transform(transform)
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=data["test"],
        data_collator=collate,
        processing_class=processor,
        compute_metrics=accuracy,
    )
    trainer.train()
    if training.do_eval:
        trainer.log_metrics("eval", trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
