"""Make what the training scripts of this folder read: model folders with random weights, and small data sets.

``python make_model_and_data.py FOLDER --size 1b`` writes FOLDER/llama, qwen3, gemma3, bert, t5 and vit as
``save_pretrained`` does, with a tokenizer of bytes; data sets (JSON lines) and images/ as ``datasets.load_dataset``
reads them; zero2.json and zero3.json for ``--deepspeed``; and fsdp2.yaml for ``accelerate launch``. Nothing is
downloaded. The names are the same for every size, so that a command can be tried with small models first.
"""

import argparse
import json
import random
import string
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BertConfig,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    T5Config,
    ViTConfig,
    ViTImageProcessor,
)

SIZES = {
    "tiny": {
        "llama": {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "vocab_size": 1000},
        "qwen3": {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000},
        "gemma3": {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 1000, "sliding_window": 32},
        "bert": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "vocab_size": 1000},
        "t5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 1000},
        "vit": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                "image_size": 32, "patch_size": 8},
    },
    "1b": {  # Llama 3.2 1B, Qwen3 1.7B, Gemma 3 1B, BERT large, FLAN-T5 large with T5's wider layers, ViT-g/14
        "llama": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
                  "num_key_value_heads": 8, "vocab_size": 128256},
        "qwen3": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
                  "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
        "gemma3": {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
                   "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "sliding_window": 512},
        "bert": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
                 "vocab_size": 30522},
        "t5": {"d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16, "vocab_size": 32128},
        "vit": {"hidden_size": 1408, "intermediate_size": 6144, "num_hidden_layers": 40, "num_attention_heads": 16,
                "image_size": 224, "patch_size": 14},
    },
}  # fmt: skip

PAD, BEGIN, END = "<pad>", "<s>", "</s>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
ROWS = {"train": 128, "test": 16}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a byte, so that a text has as many tokens as bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([PAD, BEGIN, END, *letters])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token=PAD, bos_token=BEGIN, eos_token=END)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_models(folder: Path, size: str, weights: bool) -> None:
    """Write the model folders: weights in bfloat16, or the configuration alone."""
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    shapes = SIZES[size]
    configs = {
        "llama": LlamaConfig(**shapes["llama"], **tokens, max_position_embeddings=4096, tie_word_embeddings=True),
        "qwen3": Qwen3Config(**shapes["qwen3"], **tokens, max_position_embeddings=4096, tie_word_embeddings=True),
        "gemma3": Gemma3TextConfig(**shapes["gemma3"], **tokens, max_position_embeddings=4096),
        "bert": BertConfig(**shapes["bert"], num_labels=2, pad_token_id=0),
        "t5": T5Config(**shapes["t5"], pad_token_id=0, eos_token_id=2, decoder_start_token_id=0,
                       feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        "vit": ViTConfig(**shapes["vit"], num_labels=2),
    }  # fmt: skip
    classes = {
        **dict.fromkeys(("llama", "qwen3", "gemma3"), AutoModelForCausalLM),
        "bert": AutoModelForSequenceClassification,
        "t5": AutoModelForSeq2SeqLM,
        "vit": AutoModelForImageClassification,
    }
    for name, config in configs.items():
        config.dtype = "bfloat16"
        if weights:
            with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
                model = classes[name].from_config(config, dtype=torch.bfloat16)
            model.save_pretrained(folder / name)
        else:
            config.architectures = [classes[name]._model_mapping[type(config)].__name__]
            config.save_pretrained(folder / name)
    for name in configs.keys() - {"vit"}:
        make_tokenizer().save_pretrained(folder / name)
    side = shapes["vit"]["image_size"]
    ViTImageProcessor(size={"height": side, "width": side}).save_pretrained(folder / "vit")


def make_data(folder: Path) -> None:
    """Write the data sets. Texts have 50 to 1,500 characters, most of them short, as in real ones."""
    chance = random.Random(7)

    def text(typical: int, longest: int) -> str:
        length = min(longest, max(20, round(typical * chance.lognormvariate(0, 0.7))))
        words = iter(lambda: "".join(chance.choices(string.ascii_lowercase, k=chance.randint(1, 9))), None)
        line = next(words)
        while len(line) < length:
            line += " " + next(words)
        return line[:length]

    def chat() -> dict:
        question = {"role": "user", "content": text(100, 400)}
        return {"messages": [question, {"role": "assistant", "content": text(400, 1500)}]}

    rows = {
        "chat": chat,
        "texts": lambda: {"text": text(500, 1500)},
        "pairs": lambda: {"prompt": text(100, 300), "chosen": text(250, 800), "rejected": text(250, 800)},
        "prompts": lambda: {"prompt": text(60, 100)},
        "translations": lambda: {"source": text(200, 500), "target": text(200, 500)},
        "labelled": lambda: {"text": text(200, 510), "label": chance.randrange(2)},
        "books": lambda: {"text": text(8000, 8000)},
    }
    for name, row in rows.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for split, count in ROWS.items():
            lines = [json.dumps(row()) + "\n" for _ in range(count)]
            (folder / name / f"{split}.jsonl").write_text("".join(lines))

    pixels = np.random.default_rng(7)
    for split, count in ROWS.items():
        for label in ("cats", "dogs"):
            images = folder / "images" / split / label
            images.mkdir(parents=True, exist_ok=True)
            for index in range(count // 2):
                Image.fromarray(pixels.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(images / f"{index}.png")


FSDP2 = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 1
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: FULL_STATE_DICT
"""
"""What ``accelerate config`` writes for FSDP2."""


def make_launch_configs(folder: Path) -> None:
    """Write the JSON files of transformers' documentation, for ZeRO-2 and ZeRO-3, and accelerate's file for FSDP2."""
    (folder / "fsdp2.yaml").write_text(FSDP2)
    common = {
        "bf16": {"enabled": "auto"},
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }
    zero2 = {"stage": 2, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": 200_000_000}
    zero3 = {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    for name, zero in (("zero2", zero2), ("zero3", zero3)):
        (folder / f"{name}.json").write_text(json.dumps({**common, "zero_optimization": zero}, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--without-weights", action="store_true", help="model folders with config.json alone")
    arguments = parser.parse_args()
    make_models(arguments.folder, arguments.size, weights=not arguments.without_weights)
    make_data(arguments.folder)
    make_launch_configs(arguments.folder)
