"""Training of the byte-level BPE tokenizer in this folder: ``python train_tokenizer.py``. Its result is always the
same."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
VOCABULARY = 2048  # as in conf/model/tiny.yaml; the trainer stops earlier if no pair is left to merge
PAD, END = "<|pad|>", "<|end|>"


def train(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # Every byte is a token, so any text can be encoded without a token for unknown text.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main() -> None:
    lines = (HERE / "instructions.jsonl").read_text(encoding="utf-8").splitlines()
    train([json.loads(line)["text"] for line in lines]).save(str(HERE / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "padding_side": "right",
        "model_max_length": 8192,  # max_position_embeddings of conf/model/tiny.yaml
        "clean_up_tokenization_spaces": False,
    }
    (HERE / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
