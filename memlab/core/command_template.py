"""``training.command``: the user's command with places for values of the configuration.

``{model.path}`` stands for the value of a key, or for the words that ``training.words`` gives it, ``*{key}`` for each
item of a list, ``{deepspeed_json}`` for the path of the DeepSpeed JSON that memlab writes, ``{training_args}`` for
transformers' arguments, ``{data_dir}`` for a folder with ``train.json``, ``{pairs_dir}`` for one with preferences,
``{training.script}`` for a script with its words, ``{run_dir}`` for a folder of the point's own, ``{master_port}`` for
a free port, and ``{{`` and ``}}`` for braces.
"""

import json
import re
import shlex
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memlab.core.config import Config
from memlab.core.config_values import ALL_LEVELS, flat, to_dict, with_own_names
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.errors import ConfigError, nearest
from memlab.core.plan import ALLOCATOR_VARIABLES, NOT_MEASURED, config_hash, training_arguments

DEEPSPEED_JSON, RUN_DIR, PORT = "deepspeed_json", "run_dir", "master_port"
DATA_DIR, PAIRS_DIR = "data_dir", "pairs_dir"
TRAINING_ARGS = "training_args"
SCRIPT = "training.script"

PLACES = (DEEPSPEED_JSON, RUN_DIR, PORT, DATA_DIR, PAIRS_DIR, TRAINING_ARGS)
"""Places that are no keys of the configuration."""

NOT_IN_THE_WORDS = ("output_dir", "deepspeed", "remove_unused_columns")
"""Arguments of memlab's own training alone: its folder, its file, and its data without other columns."""

BRACES = "A brace of your own is written twice: {{ or }}."

BY_MEMLAB = ("measure.warmup", "measure.steps", "measure.repeat", "hardware.gpus")
"""Keys that take effect without a place: memlab counts the steps, and gives the command its GPUs."""


IN_THE_JSON = ("zero_stage", "offload")
"""Groups that the DeepSpeed JSON always holds."""

UNLESS_AUTO = ("precision", "batch", "optimizer")
"""Groups that it holds too with ``training.auto=false``."""

IN_THE_ARGUMENTS = ("batch", "checkpointing", "kernels", "optimizer", "seed")
"""Groups and keys that transformers' arguments hold."""


@dataclass(frozen=True)
class Template:
    """The words of a command, each cut into literal text and names of places. ``written``: places whose words the text
    holds already."""

    words: tuple[tuple[tuple[str, str | None], ...], ...]
    written: frozenset[str] = frozenset()

    @property
    def plain_words(self) -> list[str]:
        """The words without a place, which are the same at every point."""
        return ["".join(text for text, _ in word) for word in self.words if all(place is None for _, place in word)]

    @property
    def places(self) -> set[str]:
        return {place for word in self.words for _, place in word if place is not None} | self.written

    def fill(self, values: Mapping[str, str]) -> list[str]:
        """Return the words with these texts in their places. A value with blanks stays one word."""
        return ["".join(text + (values[place] if place else "") for text, place in word) for word in self.words]


OF_OWN_TRAINING = Template((), frozenset({DEEPSPEED_JSON, TRAINING_ARGS, PORT}))
"""memlab's own training has no command, but gets these three."""


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


def template(config: Config) -> Template:
    """Return the template of a configuration's command, with script, words and arguments written into its text."""
    if not config.is_command:
        return OF_OWN_TRAINING
    text, values, written = config.training.command, text_values(config), set()
    for place, words, is_needed in _texts(config, values):
        after_braces = rf"(?<!{{)((?:{{{{)*){{{place}}}"  # {{{key}}} is a place between two braces, {{key}} is none
        text, found = re.subn(after_braces, r"\1" + words.replace("\\", r"\\"), text)
        if not found and words and is_needed:
            text = f"{text} {words}"
        if found or (words and is_needed):
            written.add(place)

    def items(found: re.Match[str]) -> str:
        if not (value := values.get(found[1]) or "").startswith("["):
            return found[0]
        written.add(found[1])
        return _literal(map(_word, json.loads(value)))

    return replace(parse(re.sub(r"\*{([\w.]+)}", items, text)), written=frozenset(written))


def _texts(config: Config, values: Mapping[str, str | None]) -> Iterator[tuple[str, str, bool]]:
    """Yield a place, its text, and whether it stands at the end of a command that lacks the place."""
    yield SCRIPT, config.training.script, False
    for key, words in config.training.words.items():
        yield key, words_of(words, values.get(key)) or "", True
    yield TRAINING_ARGS, _literal(argument_words(config)), False


def words_of(words: str | Mapping[str, str], value: str | None) -> str | None:
    """Return the words of a key for one value; ``None`` if there are none for this value."""
    return words if isinstance(words, str) else words.get("null" if value is None else value)


def _literal(words: Iterable[str]) -> str:
    """Write words as the text of a command that stands for them."""
    return shlex.join(words).replace("{", "{{").replace("}", "}}")


def argument_words(config: Config) -> list[str]:
    """Return the arguments of transformers' Trainer as words of a command line: ``--bf16 true``."""
    words: list[str] = []
    for name, value in training_arguments(config).items():
        if name in NOT_IN_THE_WORDS or (name == "max_steps" and config.measure.profile):  # its steps come after these
            continue
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(_word(each) for each in values or ["none"])]
    return words


def check_places(config: Config) -> None:
    """Raise :class:`ConfigError` if the command has a place that is no key, or whose key has no value."""
    keys = text_values(config)
    for key, words in config.training.words.items():
        if key not in keys:
            raise ConfigError(f"training.words: no key '{key}'. {nearest(key, keys)}")
        if not all(isinstance(each, str) for each in (words if isinstance(words, dict) else {"": words}).values()):
            raise ConfigError(f"training.words: '{key}' has words as text, or for each value words as text.")
    found = template(config)
    if SCRIPT in found.written and not config.training.script:
        raise ConfigError(f"{config.training.name} needs a script: add training.script=<file, and words of its own>.")
    for place in sorted(found.places - found.written - set(PLACES)):
        if place not in keys:
            raise ConfigError(f"training.command: no key '{place}'. {nearest(place, [*keys, *PLACES])}")
        if keys[place] is None:
            raise ConfigError(f"training.command: '{place}' has no value: add {place}=<value> to the command line.")


def text_values(config: Config) -> dict[str, str | None]:
    """Return dotted key -> its value as a word of a command line; ``None`` for a key without a value."""
    values = with_own_names(to_dict(config))
    known = {**flat(values, ALL_LEVELS), **flat(values)}
    return {key: None if value is None else _word(value) for key, value in known.items()}


def _word(value: Any) -> str:
    """Write a value as a word: true and false in lower case, lists and dictionaries as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def filled(
    config: Config, deepspeed_json: Path | str, run_dir: Path | str, port: int | str, data_dir: Path | str = ""
) -> list[str]:
    """Return the words of the command for one point. ``port``: a free one. ``data_dir``: as files/training_data.py
    makes it."""
    own = {DEEPSPEED_JSON: deepspeed_json, RUN_DIR: run_dir, PORT: port, DATA_DIR: data_dir, PAIRS_DIR: data_dir}
    values = text_values(config) | {place: str(value) for place, value in own.items()}
    return template(config).fill({place: text for place, text in values.items() if text is not None})


def named_files(config: Config) -> list[Path]:
    """Return the files and folders that the words of the command name, ``--option=PATH`` too, but none that memlab
    makes."""
    words = filled(config, "", "", "", config.data.path or "")
    return [path for word in words if (text := word.rpartition("=")[2]) and (path := Path(text)).exists()]


def command_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment with the composed settings of the allocator, and no others."""
    inherited = {name: value for name, value in environ.items() if name not in ALLOCATOR_VARIABLES}
    return inherited | (dict.fromkeys(ALLOCATOR_VARIABLES, config.allocator.conf) if config.allocator.conf else {})


def given(config: Config) -> set[str]:
    """Return the keys whose values the command was given: by a place, through a file, or through the environment."""
    places = template(config).places
    groups: tuple[str, ...] = IN_THE_ARGUMENTS if TRAINING_ARGS in places else ()
    if DEEPSPEED_JSON in places:
        groups += IN_THE_JSON if config.training.auto else IN_THE_JSON + UNLESS_AUTO
    named = {*places, *groups, "allocator.conf", "hardware.gpus"}
    return {key for key in flat(to_dict(config)) if {key, key.partition(".")[0]} & named}


def check_effects(configs: Sequence[Config]) -> None:
    """Raise :class:`ConfigError` if points differ in a key that reaches the command in no way.

    A key has an effect by its place in the command, through ``{deepspeed_json}``, through the environment, or because
    memlab itself acts on it (:data:`BY_MEMLAB`).
    """
    by_effect: dict[str, Config] = {}
    for config in configs:
        first = by_effect.setdefault(effect(config), config)
        if key := next(_differing(first, config), None):
            raise ConfigError(
                f"'{key}' varies, but training.command has no place for it, and it reaches the command neither through "
                f"{{deepspeed_json}} nor through the environment: write {{{key}}} where your script takes it, or give "
                "it one value."
            )


def effect(config: Config) -> str:
    """Return everything of a configuration that reaches the command, as text. Equal texts run the same way. All of it
    reaches memlab's own training."""
    if not config.is_command:
        return config_hash(config)
    values, found = text_values(config), template(config)
    json_too = deepspeed_config(config) if DEEPSPEED_JSON in found.places else None
    data = [config.data.source, config.data.path] if {DATA_DIR, PAIRS_DIR} & found.places else None
    seen = [values[place] for place in sorted(found.places - set(PLACES))]
    by_memlab = [values[key] for key in BY_MEMLAB]
    return json.dumps([found.words, seen, by_memlab, json_too, data, config.allocator.conf], sort_keys=True)


def _differing(one: Config, other: Config) -> Iterator[str]:
    first, second = text_values(one), text_values(other)
    for key in {**first, **second}:
        if first.get(key) != second.get(key) and not {key, key.partition(".")[0]} & {*NOT_MEASURED, "mode"}:
            yield key
