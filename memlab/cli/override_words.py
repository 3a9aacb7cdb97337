"""Checks of words and of what they compose that need more than the schema: secrets, own keys, points, GPUs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, RangeSweep, Sweep

from memlab.cli.hydra_errors import COMPOSITION_ERRORS, as_one_line, nearest_gpu, word_here
from memlab.core.config import Config
from memlab.core.config_values import ALL_LEVELS, check_spelling, flat
from memlab.core.errors import ConfigError, UnknownKey
from memlab.core.foreign_words import OF_DEEPSPEED
from memlab.files.conf_files import known_gpu, option_values, options_of
from memlab.files.redaction import has_credentials

MOST_POINTS = 10_000
"""Largest number of points in one sweep. Composing this many takes minutes and gigabytes."""

OF_A_GPU = ("memory_gib", "bf16_tflops", "fp32_tflops", "memory_gb_per_s", "link_gb_per_s", "host_gb_per_s")
"""Keys of ``hardware`` whose values belong to a GPU model, as in conf/hardware/gpu/."""

OF_NO_GPU = ("auto", "cpu")
"""Options of hardware that have no GPU's memory and speeds: ``auto`` takes those of the GPU that is named."""


def check_words(words: Iterable[str]) -> None:
    """Refuse what must not reach Hydra, which would write it to a file. Raises :class:`ConfigError`."""
    for word in words:
        if has_credentials(word):
            raise ConfigError(
                f"'{word.split('=')[0]}' holds a password, which would be written to the run folder. Remove it "
                "from the URL."
            )
        if word.lstrip("+~").startswith("hydra.output_subdir"):
            raise ConfigError(
                "'hydra.output_subdir' cannot be set: memlab keeps the composed configuration in .hydra/ of the run "
                "folder. Leave it out."
            )


PACKAGELESS = ("experiment", "local")
"""Groups whose files set keys of any group, so that they have no keys themselves."""


def check_own(own: Mapping[str, Any]) -> None:
    """Refuse a key of the user's own that is a misspelt one of memlab's, or a word of another library: it would have no
    effect."""
    check_spelling(own)
    for key, value in own.items():
        if key in PACKAGELESS and isinstance(value, dict):
            raise ConfigError(f"The first line of the file in {key}/ must be '# @package _global_': it sets any key.")
        if not isinstance(value, dict) and word_here(key, str(value)):
            raise UnknownKey(key, value, ())
    for path, value in flat(own, ALL_LEVELS).items():
        if {path, f"zero_optimization.{path}"} & OF_DEEPSPEED.keys():
            raise UnknownKey(path, value, ())


def with_plus(words: Iterable[str]) -> list[str]:
    """Write ``experiment=NAME`` as Hydra needs it where the defaults list has no experiment: ``+experiment=NAME``."""
    return [f"+{word}" if word.startswith("experiment=") else word for word in words]


def check_total(counts: Mapping[str, int]) -> None:
    """Refuse a sweep of no points or of more than :data:`MOST_POINTS`. ``counts``: number of values of each key."""
    if not (total := math.prod(counts.values())):
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
    if (runs := sum(config.measure.repeats for config in configs)) > MOST_POINTS:
        raise ConfigError(
            f"measure.repeats makes {runs:,} runs of {len(configs):,} points; memlab runs at most {MOST_POINTS:,}. "
            "Give fewer repeats or fewer points."
        )


def count_values(overrides: Iterable[Override], config_dir: str | None = None) -> dict[str, int]:
    """Return key -> number of values of its word. The values are not made, since a range may be endless."""
    return {override.get_key_element(): _count(override, config_dir) for override in overrides}


def _count(override: Override, config_dir: str | None) -> int:
    key, value, loader = override.key_or_group, override.value(), override.config_loader
    if isinstance(value, RangeSweep):
        return _range_length(key, value)
    if isinstance(value, ChoiceSweep):
        if any(isinstance(each, Sweep | Glob) for each in value.list):
            raise ConfigError(f"'{key}': a range cannot be one of several values. Give the range alone.")
        return len(value.list)
    if isinstance(value, IntervalSweep):
        raise ConfigError(
            f"'{key}': an interval is for a sweeper that searches, such as hydra/sweeper=optuna. Without one, give "
            "values: a,b,c or range(start,stop,step)."
        )
    if isinstance(value, Glob):
        return len(value.filter(loader.get_group_options(key) if loader else options_of(key, config_dir)))
    return value if key == "measure.repeats" and isinstance(value, int) else 1


def _range_length(key: str, values: RangeSweep) -> int:
    start, stop, step = (math.nan if each is None else each for each in (values.start, values.stop, values.step))
    if not step or not all(map(math.isfinite, (start, stop, step))):
        raise ConfigError(f"'{key}': a range needs a finite start and stop, and a step other than 0.")
    return max(0, math.ceil((Fraction(stop) - Fraction(start)) / Fraction(step)))


def expand(words: Sequence[str], config_dir: str | None = None) -> dict[str, list[str]]:
    """Split each word into words of one value, by key: ``offload=none,all`` -> ``offload=none``, ``offload=all``.

    Raises :class:`ConfigError` if a word is wrong.
    """
    check_words(words)
    try:
        overrides = OverridesParser.create().parse_overrides(list(words))
    except COMPOSITION_ERRORS as error:
        raise as_one_line(error, words) from error
    check_total(count_values(overrides, config_dir))
    expanded: dict[str, list[str]] = {}
    for word, override in zip(words, overrides, strict=True):
        key, value = override.get_key_element(), override.value()
        if isinstance(value, Glob):
            values = value.filter(options_of(override.key_or_group, config_dir))
        else:
            values = list(override.sweep_string_iterator()) if override.is_sweep_override() else []
        expanded[key] = [f"{key}={each}" for each in values] or [word]
    return expanded


def check_gpu(config: Config, choices: Mapping[str, str], words: Iterable[str]) -> None:
    """Refuse the name of a GPU that is not of the option's GPU: it would keep that one's memory and speeds.

    ``words``: those of the command line, which may give the values themselves.
    """
    option, hardware = choices.get("hardware", "auto"), config.hardware
    if hardware.gpu.isdigit():
        raise ConfigError(
            f"'hardware.gpu' is the name of a GPU, not '{hardware.gpu}'. Their number is hardware.gpus={hardware.gpu}."
        )
    if option in OF_NO_GPU or option not in options_of("hardware"):
        return
    values = option_values("hardware", option)
    if hardware.gpu == values["gpu"] or _is_gpu_of(option, hardware.gpu):
        return
    given = {word.partition("=")[0] for word in words}
    if any(getattr(hardware, key) == values[key] and f"hardware.{key}" not in given for key in OF_A_GPU):
        why = f"'hardware.gpu={hardware.gpu}' would have the memory and speeds of hardware={option}."
        raise ConfigError(f"{why} {instead_of_a_name(hardware.gpu)}")


def _is_gpu_of(option: str, name: str) -> bool:
    """Whether a shipped option of the group hardware is of the GPU that ``name`` names."""
    known = known_gpu(name)
    return bool(known) and option_values("hardware", option).get("gpu") == known["gpu"]


def instead_of_a_name(gpu: str) -> str:
    """Say which options of the group hardware are close to the name of a GPU, and which keys describe another one."""
    options = options_of("hardware")
    same = [option for option in options if _is_gpu_of(option, gpu)]
    keys = ", ".join(f"hardware.{key}" for key in OF_A_GPU)
    return (
        f"The options of hardware are of known GPUs. {nearest_gpu(gpu.lower().replace(' ', ''), same or options)} For "
        f"another GPU, add {keys} (null: not known), or keep them in a file (docs/howto/gpu_and_price.md)."
    )
