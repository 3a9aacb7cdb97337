"""Training data: batches of exactly (micro batch, tokens), one for each forward."""

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import Dataset

from memlab.core.config import Config, Data
from memlab.core.errors import ConfigError
from memlab.files import json_file
from memlab.training.model import base_model

SAMPLE = Path(__file__).parent / "sample"
GUANACO = "timdettmers/openassistant-guanaco"
IGNORED = -100  # transformers' label for a position that does not count


@dataclass(frozen=True)
class Shape:
    """``batches`` batches of ``micro`` samples of ``tokens`` tokens."""

    micro: int
    tokens: int
    batches: int


class Batches(Dataset):
    """The batches of one rank: all batches of the first shape, then of the second, and so on."""

    def __init__(self, model: torch.nn.Module, config: Config, shapes: Sequence[Shape], rank: int, world_size: int):
        self.shapes = [shape for shape in shapes for _ in range(shape.batches)]
        vocabulary = model.config.get_text_config().vocab_size
        if config.data.source == "random":
            self.make = _random_batch(vocabulary, shift_labels=_takes_shifted_labels(model))
        else:
            self.make = _text_batch(config, vocabulary, rank, world_size)
        self.seed = config.seed * 1_000_003 + rank

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed + 7919 * index)
        return self.make(self.shapes[index], index, generator)


def _takes_shifted_labels(model: torch.nn.Module) -> bool:
    """Whether the model accepts labels that are already shifted; otherwise it shifts them itself. It does if
    ``forward`` passes keyword arguments to the loss function, determined as Trainer does it."""
    parameters = inspect.signature(base_model(model).forward).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _random_batch(vocabulary: int, shift_labels: bool):
    """Return a function that makes batches of uniformly random tokens.

    It draws one token more than the length, so that every position has a next token, even with a length of one.
    """

    def make(shape: Shape, index: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
        drawn = torch.randint(vocabulary, (shape.micro, shape.tokens + 1), generator=generator)
        inputs = drawn[:, :-1].contiguous()
        batch = {"input_ids": inputs, "labels": inputs}
        return {**batch, "shift_labels": drawn[:, 1:].contiguous()} if shift_labels else batch

    return make


def _text_batch(config: Config, vocabulary: int, rank: int, world_size: int):
    """Return a function that makes batches of tokenised texts, padded or truncated to the length.

    Padding is masked and does not count in the loss.
    """
    tokenizer = load_tokenizer(config)
    texts = load_texts(config.data)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    def make(shape: Shape, index: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
        first = (index * world_size + rank) * shape.micro
        chosen = [texts[(first + i) % len(texts)] for i in range(shape.micro)]
        rows = tokenizer(chosen, truncation=True, max_length=shape.tokens)["input_ids"]
        inputs = torch.tensor([row + [pad] * (shape.tokens - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (shape.tokens - len(row)) for row in rows])
        if int(inputs.max()) >= vocabulary:
            raise ConfigError(
                f"data={config.data.source}: the tokenizer has token {int(inputs.max())}, but the model's vocabulary "
                f"has {vocabulary}. Set data.tokenizer to the model's own."
            )
        return {"input_ids": inputs, "attention_mask": mask, "labels": inputs.masked_fill(mask == 0, IGNORED)}

    return make


def load_tokenizer(config: Config):
    """Load ``data.tokenizer`` if it is set, or else the shipped tokenizer for ``sample``, or else the model's own."""
    from transformers import AutoTokenizer

    name = config.data.tokenizer or (SAMPLE if config.data.source == "sample" else config.model.path)
    return AutoTokenizer.from_pretrained(str(name), trust_remote_code=config.model.trust_remote_code)


def load_texts(data: Data) -> list[str]:
    """Load the texts of a data set. Raises :class:`ConfigError` if the file or field is missing or the set is empty."""
    from datasets import load_dataset

    if data.source == "guanaco":
        rows = load_dataset(GUANACO, split=data.split)
    else:
        path = SAMPLE / "instructions.jsonl" if data.source == "sample" else Path(data.path or "")
        if not path.is_file():
            raise ConfigError(f"data.path={path}: no such file.")
        try:
            rows = load_dataset("json", data_files=str(path), split="train")
        except Exception:
            json_file.check(path, data.text_field)  # raises an error that names the line
            raise
    if data.text_field not in rows.column_names:
        found = json.dumps(rows.column_names)
        raise ConfigError(f"data.text_field={data.text_field}: the data has no such field; it has {found}.")
    if not len(rows):
        raise ConfigError(f"data={data.source}: the data set is empty.")
    return list(rows[data.text_field])
