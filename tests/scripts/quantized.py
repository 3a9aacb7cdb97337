"""Adapters on a model in 4 or 8 bits: BitsAndBytesConfig, peft, and an optimizer of bitsandbytes with 8-bit states."""

import argparse

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

CONFIGS = {
    "4": BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    ),
    "8": BitsAndBytesConfig(load_in_8bit=True),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--bits", choices=CONFIGS, default="4")
    parser.add_argument("--optimizer", choices=("AdamW8bit", "PagedAdamW8bit"), default="AdamW8bit")
    parser.add_argument("--length", type=int, default=256)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(
        options.model, quantization_config=CONFIGS[options.bits], dtype="auto", device_map={"": 0}
    )
    model = prepare_model_for_kbit_training(model)
    model = get_peft_model(model, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = getattr(bnb.optim, options.optimizer)(trained)
    for _ in range(2):
        tokens = torch.randint(0, 900, (2, options.length), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("allocated", torch.cuda.max_memory_allocated())
