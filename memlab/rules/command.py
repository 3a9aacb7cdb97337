"""Values that a trainer with ``training.words`` does not take: they would reach its command in no way."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from memlab.core.command_template import DEEPSPEED_JSON, IN_THE_JSON, effect, template, text_values, words_of
from memlab.core.config import GROUPS, LIBRARIES, Config
from memlab.files.conf_files import default_config
from memlab.rules.rule import changed

BY_MEMLAB = ("allocator", "training", "hardware", "measure", "predict", "sweep")
"""Groups that memlab itself carries out."""

CHOICES = tuple(group for group in GROUPS if group not in BY_MEMLAB)

TOGETHER = {"optimizer.source": ("source", "name")}
"""Key -> the keys that have a meaning together."""


def without_words(config: Config) -> list[str]:
    """List the values that the trainer of a command cannot take, each with its reason and a value that it can take.

    memlab's defaults are no choice. A command without ``training.words`` does not say which values it takes.
    """
    if not (words := config.training.words):
        return []
    if "model.path" in words and config.model.path == default_config().model.path:
        return [f"no folder holds {config.model.path}; instead: model=hf model.path=<id of the hub, or a folder>"]
    texts = text_values(config) | {name: json.dumps(getattr(config, name)) for name in LIBRARIES}
    reaches = effect(config)
    places = template(config).places
    reached = {*words, *places, *(IN_THE_JSON if DEEPSPEED_JSON in places else ())}
    unlisted = {key: ",".join(each) for key, each in words.items() if words_of(each, texts[key]) is None}
    without_effect = {
        key: default
        for key, default, without in _single_defaults(config)
        if not {key, key.partition(".")[0]} & reached and effect(without) == reaches
    }
    return [
        f"{config.training.name} has no word for {key}={texts[key]}; instead: {key}={other}"
        for key, other in (unlisted | without_effect).items()
    ]


def _single_defaults(config: Config) -> Iterator[tuple[str, Any, Config]]:
    """Yield each key whose value is not the default, the default, and the configuration with it."""
    for choice in CHOICES:
        values, known = getattr(config, choice), getattr(default_config(), choice)
        for name in changed(values, defaults=known):
            key = f"{choice}.{name}"
            together = {each: getattr(known, each) for each in TOGETHER.get(key, (name,))}
            yield key, getattr(known, name), replace(config, **{choice: replace(values, **together)})
    for name in (*LIBRARIES, "seed"):
        if getattr(config, name) != (default := getattr(default_config(), name)):
            yield name, default, replace(config, **{name: default})
