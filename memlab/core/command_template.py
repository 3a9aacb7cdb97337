"""``training.command``: the user's command with places for values of the configuration.

``{model.path}`` stands for the value of a key, ``{deepspeed_json}`` for the path of the DeepSpeed JSON that memlab
writes, ``{run_dir}`` for a folder of the point's own, ``{master_port}`` for a free port, and ``{{`` and ``}}`` for
braces.
"""

import json
import shlex
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memlab.core.config import ALL_LEVELS, Config, flat, to_dict, with_own_names
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.errors import ConfigError, nearest
from memlab.core.plan import NOT_MEASURED

DEEPSPEED_JSON, RUN_DIR, PORT = "deepspeed_json", "run_dir", "master_port"

PLACES = (DEEPSPEED_JSON, RUN_DIR, PORT)
"""Places that are no keys of the configuration."""

BRACES = "A brace of your own is written twice: {{ or }}."

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

BY_MEMLAB = ("measure.warmup", "measure.steps", "measure.repeat", "hardware.gpus")
"""Keys that take effect without a place: memlab counts the steps, and gives the command its GPUs."""


@dataclass(frozen=True)
class Template:
    """The words of a command, each cut into literal text and names of places."""

    words: tuple[tuple[tuple[str, str | None], ...], ...]

    @property
    def plain_words(self) -> list[str]:
        """The words without a place, which are the same at every point."""
        return ["".join(text for text, _ in word) for word in self.words if all(place is None for _, place in word)]

    @property
    def places(self) -> set[str]:
        return {place for word in self.words for _, place in word if place is not None}

    def fill(self, values: Mapping[str, str]) -> list[str]:
        """Return the words with these texts in their places. A value with blanks stays one word."""
        return ["".join(text + (values[place] if place else "") for text, place in word) for word in self.words]


def parse(command: str) -> Template:
    """Cut a command into words as a shell does, and find its places. Raises :class:`ConfigError`."""
    try:
        words = shlex.split(command)
        pieces = [list(string.Formatter().parse(word)) for word in words]
    except ValueError as error:
        raise ConfigError(f"training.command: {error}. {BRACES}") from error
    if not words:
        raise ConfigError("training.command is empty. For instance 'deepspeed train.py --deepspeed {deepspeed_json}'.")
    for _, place, form, conversion in (piece for word in pieces for piece in word):
        if place == "" or form or conversion:
            raise ConfigError(f"training.command: '{{{place}}}' with a format is no place. {BRACES}")
    return Template(tuple(tuple((text, place) for text, place, _, _ in word) for word in pieces))


def check_places(config: Config) -> None:
    """Raise :class:`ConfigError` if the command has a place that is no key, or whose key has no value."""
    keys = text_values(config)
    for place in sorted(parse(config.training.command).places - set(PLACES)):
        if place not in keys:
            raise ConfigError(f"training.command: no key '{place}'. {nearest(place, [*keys, *PLACES])}")
        if keys[place] is None:
            raise ConfigError(f"training.command: '{place}' has no value: add {place}=<value> to the command line.")


def text_values(config: Config) -> dict[str, str | None]:
    """Return dotted key -> its value as a word of a command line; ``None`` for a key without a value."""
    return {key: _text(value) for key, value in flat(with_own_names(to_dict(config)), ALL_LEVELS).items()}


def _text(value: Any) -> str | None:
    """Write a value as a word: true and false in lower case, lists and dictionaries as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def filled(config: Config, deepspeed_json: Path, run_dir: Path, port: int | str) -> list[str]:
    """Return the words of the command for one point. ``port``: a free one."""
    values = {key: text for key, text in text_values(config).items() if text is not None}
    own = {DEEPSPEED_JSON: str(deepspeed_json), RUN_DIR: str(run_dir), PORT: str(port)}
    return parse(config.training.command).fill(values | own)


def named_files(config: Config) -> list[Path]:
    """Return the files and folders that the words of the command name, ``--option=PATH`` too, but none that memlab
    makes."""
    own = {DEEPSPEED_JSON: "", RUN_DIR: "", PORT: ""}
    values = {key: text for key, text in text_values(config).items() if text is not None}
    words = parse(config.training.command).fill(values | own)
    return [path for word in words if (text := word.rpartition("=")[2]) and (path := Path(text)).exists()]


def command_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment with the composed settings of the allocator, and no others."""
    inherited = {name: value for name, value in environ.items() if name not in ALLOCATOR_VARIABLES}
    return inherited | (dict.fromkeys(ALLOCATOR_VARIABLES, config.allocator.conf) if config.allocator.conf else {})


def check_effects(configs: Sequence[Config]) -> None:
    """Raise :class:`ConfigError` if points differ in a key that reaches the command in no way.

    A key has an effect by its place in the command, through ``{deepspeed_json}``, through the environment, or because
    memlab itself acts on it (:data:`BY_MEMLAB`).
    """
    by_effect: dict[str, Config] = {}
    for config in configs:
        first = by_effect.setdefault(effect(config), config)
        if differing := _differing(first, config):
            key = differing[0]
            raise ConfigError(
                f"'{key}' varies, but training.command has no place for it, and it reaches the command neither through "
                f"{{deepspeed_json}} nor through the environment: write {{{key}}} where your script takes it, or give "
                "it one value."
            )


def effect(config: Config) -> str:
    """Return everything of a configuration that reaches the command, as text. Equal texts run alike."""
    values, template = text_values(config), parse(config.training.command)
    json_too = deepspeed_config(config) if DEEPSPEED_JSON in template.places else None
    seen = [values[place] for place in sorted(template.places - set(PLACES))]
    by_memlab = [values[key] for key in BY_MEMLAB]
    return json.dumps([config.training.command, seen, by_memlab, json_too, config.allocator.conf], sort_keys=True)


def _differing(one: Config, other: Config) -> list[str]:
    first, second = text_values(one), text_values(other)
    ignored = {*NOT_MEASURED, "mode"}
    return [
        key
        for key in {**first, **second}
        if first.get(key) != second.get(key) and not {key, key.partition(".")[0]} & ignored
    ]
