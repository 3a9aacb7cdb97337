"""Checks of the command-line words before Hydra composes: names, options, and the number of points."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, RangeSweep, Sweep, ValueType

from memlab.cli.hydra_errors import COMPOSITION_ERRORS, one_line
from memlab.cli.library_values import library_word
from memlab.core.config import FREE_DICTS, GROUPS, Config, from_dict
from memlab.core.errors import ConfigError, nearest
from memlab.core.foreign_words import foreign_word
from memlab.files.conf_files import conf_dir, known_gpu, option_values
from memlab.files.redaction import has_credentials

ADDED_GROUPS = ("experiment",)
"""Groups that are not in the defaults list: ``+group=option`` adds one. Their options set fields of other groups."""

MOST_POINTS = 10_000
"""Largest number of points in one sweep. Composing this many takes minutes and gigabytes."""

OF_A_GPU = tuple(
    f"hardware.{key}"
    for key in ("memory_gib", "bf16_tflops", "fp32_tflops", "memory_gb_per_s", "link_gb_per_s", "host_gb_per_s")
)
"""Keys whose values belong to a GPU model, as in conf/hardware/gpu/."""

OF_NO_GPU = ("auto", "cpu")
"""Options of hardware that have no GPU's memory and speeds: ``auto`` takes those of the GPU that is named."""

FREE_VALUE = {"seq_len": "seq_len.tokens", "batch": "batch.micro"}
"""Groups whose options are numbers -> the field that takes any other number."""


def options_of(group: str, config_dir: str | None = None) -> list[str]:
    """List the options of a config group: shipped ones and the user's own in ``config_dir``."""
    folders = [Path(conf_dir()), *([Path(config_dir)] if config_dir else [])]
    return sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})


def check_overrides(words: Sequence[str], config_dir: str | None = None) -> None:
    """Raise :class:`ConfigError`, with the nearest valid name, for an unknown group, option or key."""
    for word in words:
        if has_credentials(word):
            raise ConfigError(
                f"'{word.split('=')[0]}' holds a password, which would be written to the run folder. Remove it "
                "from the URL."
            )
    try:
        overrides = OverridesParser.create().parse_overrides(list(words))
    except COMPOSITION_ERRORS as error:
        raise ConfigError(f"Cannot read the command line: {one_line(error)}") from error
    check_total(count_values(overrides, config_dir))
    for override in overrides:
        if override.key_or_group == "hydra.output_subdir":
            raise ConfigError(
                "'hydra.output_subdir' cannot be set: memlab keeps the composed configuration in .hydra/ of the run "
                "folder. Leave it out."
            )
        if not re.match(r"hydra([./@]|$)", override.key_or_group):
            _check_override(override, config_dir)
    _check_gpu({override.key_or_group: override for override in overrides})


def check_total(counts: Mapping[str, int]) -> None:
    """Refuse a sweep of no points or of more than :data:`MOST_POINTS`. ``counts``: number of values of each key."""
    total = math.prod(counts.values())
    if not total:
        empty = next(key for key, count in counts.items() if not count)
        raise ConfigError(f"'{empty}' has no value: widen its range or pattern.")
    if total > MOST_POINTS:
        factors = " x ".join(f"{count:,} of {key}" for key, count in counts.items() if count > 1)
        raise ConfigError(
            f"The sweep has {total:,} points ({factors}); memlab runs at most {MOST_POINTS:,}. Give fewer values, or a "
            "larger step in range(start,stop,step)."
        )


def check_runs(configs: Sequence[Config]) -> None:
    """Refuse more runs than :data:`MOST_POINTS`, counted after composition: a file may set ``measure.repeats``."""
    runs = sum(config.measure.repeats for config in configs)
    if runs > MOST_POINTS:
        raise ConfigError(
            f"measure.repeats makes {runs:,} runs of {len(configs):,} points; memlab runs at most {MOST_POINTS:,}. "
            "Give fewer repeats or fewer points."
        )


def count_values(overrides: Iterable[Override], config_dir: str | None = None) -> dict[str, int]:
    """Return key -> number of values of its word. The values are not made, since a range may be endless."""
    return {override.get_key_element(): _count(override, config_dir) for override in overrides}


def _count(override: Override, config_dir: str | None) -> int:
    value = override.value()
    if isinstance(value, RangeSweep):
        return _range_length(override.key_or_group, value)
    if isinstance(value, ChoiceSweep):
        if any(isinstance(each, Sweep | Glob) for each in value.list):
            raise ConfigError(
                f"'{override.key_or_group}': a range cannot be one of several values. Give the range alone."
            )
        return len(value.list)
    if isinstance(value, Glob):
        return len(value.filter(options_of(override.key_or_group, config_dir)))
    return value if override.key_or_group == "measure.repeats" and isinstance(value, int) else 1


def _range_length(key: str, values: RangeSweep) -> int:
    if not values.step or not all(math.isfinite(number) for number in (values.start, values.stop, values.step)):
        raise ConfigError(f"'{key}': a range needs a finite start and stop, and a step other than 0.")
    return max(0, math.ceil((Fraction(values.stop) - Fraction(values.start)) / Fraction(values.step)))


def expand(words: Sequence[str], config_dir: str | None = None) -> dict[str, list[str]]:
    """Split each word into words of one value, by key: ``offload=none,all`` -> ``offload=none``, ``offload=all``.

    Raises :class:`ConfigError` if a word is wrong.
    """
    check_overrides(words, config_dir)
    expanded: dict[str, list[str]] = {}
    for word, override in zip(words, OverridesParser.create().parse_overrides(list(words)), strict=True):
        key = override.get_key_element()
        values = override.sweep_string_iterator() if override.is_sweep_override() else None
        expanded[key] = [word] if values is None else [f"{key}={value}" for value in values]
    return expanded


def _check_override(override: Override, config_dir: str | None) -> None:
    key = override.key_or_group
    if override.is_delete():
        raise ConfigError(f"'~{key}': keys cannot be deleted. Choose an option or a value instead.")
    if new := _new_word(override, config_dir):
        raise ConfigError(f"'{override.input_line}' is now {new}.")
    if override.package is not None:
        raise ConfigError(f"'{key}@{override.package}': a config group cannot be moved. Write {key}=<option>.")
    if key in GROUPS or key in ADDED_GROUPS:
        _check_options(key, override, config_dir)
    elif "/" in key:
        raise ConfigError(f"Unknown config group '{key}'. {nearest(key.split('/')[0], GROUPS)}")
    else:
        check_key(key, override.input_line.partition("=")[2] or "<value>")
    if key == "name" and not override.is_sweep_override():  # checked before Hydra makes a folder of this name
        value = override.value()
        from_dict({"name": None if value is None else str(value)})


def _new_word(override: Override, config_dir: str | None) -> str | None:
    """Return the word that replaced an old one: studies were options of ``sweep``, and ``search`` was a group."""
    key, value = override.key_or_group, str(override.input_line).partition("=")[2]
    if key == "search":
        return f"sweep.search={value}"
    is_study = key == "sweep" and set(value.split(",")) & set(options_of("experiment", config_dir))
    return f"+experiment={value}" if is_study or (key == "experiment" and not override.is_add()) else None


def _check_options(group: str, override: Override, config_dir: str | None) -> None:
    if override.value_type is ValueType.GLOB_CHOICE_SWEEP:  # a pattern matches existing options only
        return
    options = options_of(group, config_dir)
    for option in _chosen(override):
        if option not in options:
            if option.isdigit() and group in FREE_VALUE:
                hint = f"Set the value itself with {FREE_VALUE[group]}={option}."
            else:  # Hydra accepts no bare number as an option, so numeric options have a prefix: zero3
                numbered = [name for name in options if name.lstrip(ascii_lowercase) == option]
                hint = f"Did you mean '{numbered[0]}'?" if numbered else nearest(option, options)
            if group == "hardware":
                hint = _nearest_gpu(option, options)
                hint += " hardware.gpus=N sets their number; another GPU: docs/howto/gpu_and_price.md."
            raise ConfigError(f"Unknown option '{option}' of config group '{group}'. {hint}")


def _chosen(override: Override) -> list[str]:
    return [str(value) for value in (override.sweep_iterator() if override.is_discrete_sweep() else [override.value()])]


def _check_gpu(overrides: Mapping[str, Override]) -> None:
    """Refuse a number for a GPU's name, and a name that is not of the option's GPU: it would keep that one's values."""
    names = _chosen(overrides["hardware.gpu"]) if "hardware.gpu" in overrides else []
    for number in filter(str.isdigit, names):
        raise ConfigError(
            f"'hardware.gpu' is the name of a GPU, not '{number}'. Their number is hardware.gpus={number}."
        )
    if "hardware" not in overrides or set(OF_A_GPU) <= overrides.keys():
        return
    for option, name in itertools.product(_chosen(overrides["hardware"]), names):
        if option not in OF_NO_GPU and not _is_gpu_of(option, name):
            why = f"'hardware.gpu={name}' would have the memory and speeds of hardware={option}."
            raise ConfigError(f"{why} {instead_of_a_name(name)}")


def _nearest_gpu(option: str, options: Sequence[str]) -> str:
    """Make a hint: the options of the GPU that ``option`` names, or all. Between GPUs, one letter is no slip: an L4 is
    no T4."""
    gpu = re.escape(option.lower().partition("_")[0])
    of_it = [name for name in options if re.search(rf"(^|[a-z]){gpu}(?!\d)", name.partition("_")[0])]
    return nearest(option, of_it) if of_it else f"Choose one of: {', '.join(options)}."


def _is_gpu_of(option: str, name: str) -> bool:
    """Whether an option of the group hardware is a shipped one, and of the GPU that ``name`` names."""
    known, shipped = known_gpu(name), options_of("hardware")
    return bool(known) and option in shipped and option_values("hardware", option).get("gpu") == known["gpu"]


def instead_of_a_name(gpu: str) -> str:
    """Say which options of the group hardware are close to the name of a GPU, and which keys describe another one."""
    options = options_of("hardware")
    same = [option for option in options if _is_gpu_of(option, gpu)]
    return (
        f"The options of hardware are of known GPUs. {nearest(gpu.lower().replace(' ', ''), same or options)} For "
        f"another GPU, add {', '.join(OF_A_GPU)} (null: not known), or keep them in a file "
        "(docs/howto/gpu_and_price.md)."
    )


def check_key(key: str, value: str) -> None:
    """Raise :class:`ConfigError`, with the word that is meant or the nearest name, unless ``key`` is in the schema."""
    if key == "hardware.usd_per_hour":
        raise ConfigError(f"'{key}' is now hardware.usd_per_gpu_hour, the price of one GPU: divide by hardware.gpus.")
    values: Any = Config()
    path: list[str] = []
    for part in key.split("."):
        if ".".join(path) in FREE_DICTS:
            return
        here = ".".join(path)
        if not dataclasses.is_dataclass(values):
            raise ConfigError(f"Unknown key '{key}': '{here}' is a single value. Write {here}=<value>.")
        fields = _fields(values)
        if part not in fields:
            if word := foreign_word(key, value) or library_word(key, value):
                raise ConfigError(f"Unknown key '{key}': here it is {word}.")
            where = f"config group '{here}'" if here else "the configuration"
            hint = nearest(part, fields)
            raise ConfigError(f"Unknown key '{key}': {where} has no '{part}'. {hint}")
        path.append(part)
        values = getattr(values, part)


def _fields(values: Any) -> dict[str, dataclasses.Field]:
    return {field.name: field for field in dataclasses.fields(values)}
