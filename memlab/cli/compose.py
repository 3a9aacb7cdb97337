"""Composition with Hydra: command-line words -> Config.

Hydra accepts unknown keys after a ``+`` and suggests no similar name for a misspelt word. So memlab checks the words
against the schema before Hydra composes, and the composed result afterwards.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from fractions import Fraction
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, RangeSweep, Sweep, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from memlab.core.config import FREE_DICTS, GROUPS, Config, Hardware, from_dict
from memlab.core.errors import ConfigError, MemlabError, nearest
from memlab.core.run_id import run_id
from memlab.core.sizes import GIB
from memlab.files.conf_files import conf_dir
from memlab.files.redaction import has_credentials
from memlab.system import machine

CONFIG_NAME = "config"

ADDED_GROUPS = ("search",)
"""Groups that are not in the defaults list: ``+group=option`` adds one. Their options set fields of other groups."""

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, RecursionError)
"""Exceptions raised for a command line, or for a file in ``--config-dir``, that cannot be composed."""

MOST_POINTS = 10_000
"""Largest number of points in one sweep. Composing this many takes minutes and gigabytes."""

FREE_VALUE = {"seq_len": "seq_len.tokens", "batch": "batch.micro"}
"""Groups whose options are numbers -> the field that takes any other number."""


@cache
def register() -> None:
    """Register the schema and the resolvers that conf/ uses with Hydra. Further calls in a process do nothing."""
    schema = OmegaConf.structured(Config)
    for free in FREE_DICTS:  # any key is valid in these, without a '+'
        OmegaConf.set_struct(OmegaConf.select(schema, free), False)
    ConfigStore.instance().store(name="schema", node=schema, provider="memlab")
    OmegaConf.register_new_resolver("local", _local, replace=True)
    OmegaConf.register_new_resolver("run_id", _run_id, replace=True)
    OmegaConf.register_new_resolver("otherwise", _otherwise, replace=True)


def compose_config(overrides: Sequence[str], config_dir: str | None = None) -> tuple[Config, dict[str, str]]:
    """Compose the configuration of these command-line words. Also returns the option chosen for each group.

    Raises :class:`ConfigError` if a word is wrong.
    """
    with _composed(overrides, config_dir) as composed:
        return resolve(composed), choices_of(composed)


def compose_run(overrides: Sequence[str], config_dir: str | None = None) -> tuple[Config, str]:
    """Compose the configuration of these words. Also returns ``hydra.run.dir``. Raises as :func:`compose_config`."""
    with _composed(overrides, config_dir) as composed:
        return resolve(composed), str(composed.hydra.run.dir)


@contextlib.contextmanager
def _composed(overrides: Sequence[str], config_dir: str | None) -> Iterator[DictConfig]:
    check_overrides(overrides, config_dir)
    register()
    GlobalHydra.instance().clear()
    words = [*overrides, *([_search_path(config_dir)] if config_dir else [])]
    try:
        with initialize_config_dir(conf_dir(), version_base="1.3"):
            yield compose(CONFIG_NAME, words, return_hydra_config=True)
    except COMPOSITION_ERRORS as error:
        raise as_one_line(error) from error


def _search_path(config_dir: str) -> str:
    """Return the override word that adds a folder of config groups to Hydra's search path."""
    return f"hydra.searchpath=[{_quoted(f'file://{Path(config_dir).resolve()}')}]"


def run_dir_word(path: str) -> str:
    """Return the override word that makes ``path`` the folder of a single run."""
    return f"hydra.run.dir={_quoted(path)}"


def _quoted(text: str) -> str:
    """Quote ``text`` so that Hydra reads one value, even with commas or spaces in it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def resolve(composed: DictConfig) -> Config:
    """Convert what Hydra composed into a typed configuration."""
    values: dict[str, Any] = {}
    try:
        for key in composed:
            if key != "hydra":
                value = composed[key]
                values[str(key)] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        raise as_one_line(error) from error
    return from_dict(values)


def choices_of(composed: Mapping[str, Any]) -> dict[str, str]:
    """Return group -> chosen option for memlab's own groups."""
    chosen = composed["hydra"].runtime.choices
    return {group: chosen[group] for group in GROUPS if group in chosen}


def compose_batch(loader: ConfigLoader, master: DictConfig, batch: Sequence[Sequence[str]]) -> Iterator[DictConfig]:
    """Compose each job of a sweep from its words; the result equals that of Hydra's ``load_sweep_config``.

    For every job, Hydra would read and merge about thirty files. The chosen options alone decide which files. So Hydra
    composes each combination of options once, and the values in the other words are set on a copy.
    """
    parser = OverridesParser.create()
    composed: dict[tuple[str, ...], DictConfig] = {}
    for words in batch:
        overrides = parser.parse_overrides(list(words))
        options = tuple(override.input_line for override in overrides if not _is_value(override))
        if options not in composed:
            composed[options] = loader.load_sweep_config(master, list(options))
        yield _with_values(composed[options], overrides)


def _is_value(override: Override) -> bool:
    """Whether this word only sets a value, and does not change which files Hydra reads."""
    key = override.key_or_group
    return not (key in GROUPS or key in ADDED_GROUPS or "/" in key or override.is_hydra_override())


def _with_values(options: DictConfig, overrides: Sequence[Override]) -> DictConfig:
    """Copy the composed options, set the values of a job, and store its words where Hydra keeps them."""
    job = deepcopy(options)
    ConfigLoaderImpl._apply_overrides_to_config([one for one in overrides if _is_value(one)], job)
    of_task = [override for override in overrides if not override.is_hydra_override()]
    job.hydra.overrides.task = [override.input_line for override in of_task]
    names = job.hydra.job.config.override_dirname
    job.hydra.job.override_dirname = get_overrides_dirname(
        of_task, exclude_keys=names.exclude_keys, item_sep=names.item_sep, kv_sep=names.kv_sep
    )
    return job


def as_one_line(error: Exception) -> MemlabError:
    """Convert an exception of Hydra to a :class:`MemlabError`: the one that a resolver raised, or Hydra's message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemlabError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return ConfigError(one_line(error))


def one_line(error: Exception) -> str:
    """Shorten a message of Hydra or OmegaConf, which spans many lines, to its first two lines and the key."""
    if isinstance(error, RecursionError):
        return "a value is nested too deeply to be read"
    text = f"{error}\n{error.__cause__ or ''}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wanted = [line for line in lines if not line.startswith(("object_type=", "reference_type=", "full_key:"))]
    keys = [line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")]
    message = " ".join(wanted[:2])
    return f"{message} (at {keys[0]})" if keys and keys[0] not in message else message


# --- resolvers --------------------------------------------------------------------------------------------------------


def _local(key: str, mode: str) -> Any:
    """Resolve ``${local:gpus,${mode}}`` of conf/hardware/auto.yaml: a hardware value of this machine."""
    found = _local_hardware(mode)
    return found[key]


PREDICTED_BY_DEFAULT = "h100"
"""GPU (a file of conf/hardware/gpu/) that is predicted on a machine without GPUs, unless another one is chosen."""


@cache
def _local_hardware(mode: str) -> dict[str, Any]:
    nothing_known = {field.name: None for field in dataclasses.fields(Hardware)} | {"device": "cuda"}
    found = machine.detect().gpus
    if not found and mode != "predict":
        return {**nothing_known, "device": "cpu", "gpu": "CPU", "gpus": 2}
    if not found:
        return {**nothing_known, "gpus": 1, **_known_gpus()[PREDICTED_BY_DEFAULT]}
    entry: dict[str, Any] = next(
        (gpu for gpu in _known_gpus().values() if gpu["gpu"].lower() in found[0].name.lower()), {}
    )
    measured = {"gpu": found[0].name, "gpus": len(found), "memory_gib": round(found[0].total_bytes / GIB, 2)}
    return {**nothing_known, **entry, **measured}


def _known_gpus() -> dict[str, Any]:
    """Read conf/hardware/gpu/: file name without ending -> values."""
    files = sorted((Path(conf_dir()) / "hardware" / "gpu").glob("*.yaml"))
    return {file.stem: OmegaConf.to_container(OmegaConf.load(file)) for file in files}


def _run_id(*, _root_: DictConfig) -> str:
    """Resolve ``${run_id:}``: the name of the run folder."""
    return run_id(resolve(_root_))


def _otherwise(value: Any, default: Any) -> Any:
    """Resolve ``${otherwise:${name},${now:%Y-%m-%d}}``: the value, or the default if the value is null."""
    return default if value is None else value


# --- checking the words -----------------------------------------------------------------------------------------------


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
    if override.package is not None:
        raise ConfigError(f"'{key}@{override.package}': a config group cannot be moved. Write {key}=<option>.")
    if key in GROUPS or key in ADDED_GROUPS:
        _check_options(key, override, config_dir)
    elif "/" in key:
        raise ConfigError(f"Unknown config group '{key}'. {nearest(key.split('/')[0], GROUPS)}")
    else:
        check_key(key)
    if key == "name" and not override.is_sweep_override():  # checked before Hydra makes a folder of this name
        value = override.value()
        from_dict({"name": None if value is None else str(value)})


def _check_options(group: str, override: Override, config_dir: str | None) -> None:
    if override.value_type is ValueType.GLOB_CHOICE_SWEEP:  # a pattern matches existing options only
        return
    options = options_of(group, config_dir)
    chosen = override.sweep_iterator() if override.is_discrete_sweep() else [override.value()]
    for option in map(str, chosen):
        if option not in options:
            if option.isdigit() and group in FREE_VALUE:
                hint = f"Set the value itself with {FREE_VALUE[group]}={option}."
            else:  # Hydra accepts no bare number as an option, so numeric options have a prefix: zero3
                numbered = [name for name in options if name.lstrip(ascii_lowercase) == option]
                hint = f"Did you mean '{numbered[0]}'?" if numbered else nearest(option, options)
            raise ConfigError(f"Unknown option '{option}' of config group '{group}'. {hint}")


def check_key(key: str) -> None:
    """Raise :class:`ConfigError`, with the nearest valid name, unless ``key`` is in the schema."""
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
            where = f"config group '{here}'" if here else "the configuration"
            hint = nearest(part, fields)
            raise ConfigError(f"Unknown key '{key}': {where} has no '{part}'. {hint}")
        path.append(part)
        values = getattr(values, part)


def _fields(values: Any) -> dict[str, dataclasses.Field]:
    return {field.name: field for field in dataclasses.fields(values)}
