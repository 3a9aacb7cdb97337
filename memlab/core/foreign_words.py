"""Words of TrainingArguments, DeepSpeed, accelerate, TRL, peft and the launchers, with the words here that mean the
same. They are in foreign_words.json; docs/howto/words.md shows them, and a test holds both to what memlab composes."""

import json
from dataclasses import asdict, fields
from pathlib import Path

from memlab.core.config import Checkpointing, Config, ZeroStage

Here = str | dict[str, str]
"""Words here: with ``{}`` in the place of the value, or for each value that the foreign word can have."""

_TABLES: dict[str, dict[str, Here]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

OF_TRAINING_ARGUMENTS = _TABLES["training_args"]

OF_DEEPSPEED: dict[str, Here] = {
    **{f"zero_optimization.{field.name}": f"zero_stage.{field.name}={{}}" for field in fields(ZeroStage)},
    **{
        f"activation_checkpointing.{field.name}": f"checkpointing.{field.name}={{}}"
        for field in fields(Checkpointing)
        if field.name not in ("enabled", "reentrant")
    },
    **_TABLES["deepspeed"],
}

ELSEWHERE = _TABLES["elsewhere"]
"""Words of accelerate, of from_pretrained, TRL and peft, of the launchers, and of the environment."""


def foreign_word(key: str, value: str = "<value>") -> str | None:
    """Return the words here for ``key=value`` of another library or launcher; ``None`` for a word that none has.

    ``value``: as typed, also several with commas between them. A field of memlab's without its group counts too.
    """
    paths = (key, f"zero_optimization.{key}", key.rpartition(".")[2])
    tables = (OF_TRAINING_ARGUMENTS, OF_DEEPSPEED, ELSEWHERE)
    if here := next((table[path] for path in paths for table in tables if path in table), None):
        return in_words_here(here, value)
    owners = [group for group, values in asdict(Config()).items() if isinstance(values, dict) and key in values]
    return " or ".join(f"{group}.{key}={value}" for group in owners) or None


def in_words_here(here: Here, value: str) -> str:
    """Write words here for a value: ``zero_stage=zero{}`` and ``2,3`` -> ``zero_stage=zero2,zero3``."""
    if isinstance(here, str):
        head, _, form = here.rpartition("=")
        return f"{head}={','.join(form.format(each) for each in value.split(','))}"
    return here.get(value.lower()) or " or ".join(dict.fromkeys(here.values()))
