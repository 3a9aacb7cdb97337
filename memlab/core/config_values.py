"""Configuration as a plain dictionary: read and checked, flattened, merged, and back."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Container, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from memlab.core import allocator_conf, optimizers
from memlab.core.config import LIBRARIES, Adapter, Config, Optimizer
from memlab.core.errors import ConfigError, UnknownKey, nearest
from memlab.core.schema import MISSING, Check, SchemaError, check_field, shown

MISSPELT, MISSPELT_INSIDE = 0.8, 0.75
"""Similarity, as difflib measures it, from which a key counts as one of memlab's that is misspelt: of any key, and of a
key with the same first and last letter (``sead`` is seed, ``date`` is not data)."""

ALL_LEVELS = 9
"""Levels of a configuration for :func:`flat` that open all: also those inside model.overrides."""


def from_dict(values: dict[str, Any], prefix: str = "", strict: bool = True) -> Config:
    """Build the typed configuration from a resolved dictionary. Raises :class:`ConfigError` if the schema refuses it.

    ``prefix`` is put before each key in error messages; it says where the dictionary was found. ``strict``: False also
    takes a number as text, as environment variables hold it, and text that reads like a number, as in ``name=7``.
    """
    config = _build(Config, values, prefix, strict)
    _check_optimizer(config.optimizer)
    _check_adapter(config.adapter)
    if config.allocator.conf != MISSING:
        allocator_conf.read(config.allocator.conf)
    if config.name is not None and {"", ".", ".."} & set(config.name.split("/")):
        raise ConfigError(f"'name' names a folder under outputs/ and cannot lead elsewhere, as '{config.name}' does.")
    return config


def to_dict(config: Config) -> dict[str, Any]:
    """Convert a configuration to a plain dictionary; the inverse of :func:`from_dict`."""
    return dataclasses.asdict(config)


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Copy nested dictionaries with the values of ``more`` at their places in ``values``."""
    inner = {key: merged(values[key], value) for key, value in more.items() if isinstance(values.get(key), dict)}
    return {**values, **more, **inner}


def flat(values: Mapping[str, Any], deeper: int = 1, prefix: str = "") -> dict[str, Any]:
    """Return dotted key -> value. ``deeper``: how many levels of groups are opened."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value and deeper:
            found |= flat(value, deeper - 1, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the groups of dotted keys; undoes :func:`flat`."""
    found: dict[str, Any] = {}
    for dotted, value in values.items():
        group = found
        *above, key = dotted.split(".")
        for name in above:
            group = group.setdefault(name, {})
        group[key] = value
    return found


def library_values(config: Config) -> dict[str, Any]:
    """Return dotted key -> value of everything in :data:`LIBRARIES`."""
    return flat({name: value for name in LIBRARIES if (value := getattr(config, name))}, ALL_LEVELS)


def without(values: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Copy a plain configuration without these groups and dotted keys."""
    removed = set(keys)
    return {
        name: {key: value for key, value in part.items() if f"{name}.{key}" not in removed}
        if isinstance(part, dict)
        else part
        for name, part in values.items()
        if name not in removed
    }


def with_missing(values: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Copy a plain configuration with :data:`MISSING` at these dotted keys, and at every key of these groups."""
    nothing_known = {
        name: dict.fromkeys(part, MISSING) if isinstance(part, dict) else MISSING for name, part in values.items()
    }
    return merged(nothing_known, without(values, keys))


def _check_optimizer(optimizer: Optimizer) -> None:
    names = optimizers.NAMES[optimizer.source]
    is_deepspeed = optimizer.source == "deepspeed"
    name = optimizer.name.lower() if is_deepspeed else optimizer.name
    if name not in names:
        where = "DeepSpeed's own" if is_deepspeed else "transformers'"
        raise ConfigError(f"'optimizer.name' is none of {where} optimizers: '{optimizer.name}'. {nearest(name, names)}")


def _check_adapter(adapter: Adapter) -> None:
    targets = adapter.target_modules
    if not targets or ("all-linear" in targets and len(targets) > 1):
        raise ConfigError(
            f"'adapter.target_modules' is [all-linear], or a list of names of linear layers, not {targets!r}."
        )


def _build(schema: type, values: dict[str, Any], path: str, strict: bool) -> Any:
    keys = _keys(schema)
    for key, value in values.items():
        if key not in keys:
            raise UnknownKey(f"{path}{key}", value, keys)
    built = {}
    for name, value in values.items():
        key, annotation, check = path + name, *keys[name]
        if check is None:
            if not isinstance(value, dict):
                raise ConfigError(f"'{key}' is a config group with keys of its own, not the value {shown(value)}.")
            built[name] = _build(annotation, value, f"{key}.", strict)
        else:
            built[name] = _checked(key, value if strict else _converted(value, check.kinds), annotation, check)
    return schema(**built)


@cache
def _keys(schema: type) -> dict[str, tuple[Any, Check | None]]:
    """Return key -> (type, check). A group has no check; its keys have."""
    return {
        spec.name: (spec.type, None if dataclasses.is_dataclass(spec.type) else check_field(spec))
        for spec in dataclasses.fields(schema)
    }


_WORDS_OF_BOOL = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _converted(value: Any, kinds: Container[type]) -> Any:
    """Read text as the number or the truth value that a key takes, and a number as the text that it takes."""
    if type(value) in kinds or value == MISSING:
        return value
    if type(value) in (int, float) and str in kinds:
        return str(value)
    for kind in (int, float) if isinstance(value, str) else ():
        with contextlib.suppress(ValueError):
            if kind in kinds:
                return kind(value)
    return _WORDS_OF_BOOL.get(value.lower(), value) if isinstance(value, str) and bool in kinds else value


def with_own_names(values: dict[str, Any]) -> dict[str, Any]:
    """Copy a plain configuration with the user's own keys beside memlab's, under the names that the user typed."""
    return {**{key: value for key, value in values.items() if key != "own"}, **values.get("own", {})}


def with_own_apart(values: dict[str, Any]) -> dict[str, Any]:
    """Copy a plain configuration with every key that is not memlab's under ``own``; undoes :func:`with_own_names`."""
    known = _keys(Config)
    own = {key: value for key, value in values.items() if key not in known}
    inside = values.get("own", {})  # a key of the user's own may have this very name: the schema refuses a single value
    own = {**own, **inside} if isinstance(inside, dict) else inside
    return {**{key: value for key, value in values.items() if key in known}, "own": own}


def check_spelling(own: Mapping[str, Any]) -> None:
    """Raise :class:`UnknownKey` for a key of the user's own that is nearly one of memlab's: it is misspelt."""
    known = _keys(Config)
    words = {*known, *(key.partition("_")[0] for key in known)}  # zero of zero_stage
    for key, value in own.items():
        slips = {word for word in words if (word[0], word[-1]) == (key[0], key[-1])}
        if get_close_matches(key, words, cutoff=MISSPELT) or get_close_matches(key, slips, cutoff=MISSPELT_INSIDE):
            raise UnknownKey(key, value, known)


def _checked(key: str, value: Any, annotation: Any, check: Check) -> Any:
    if value == MISSING:
        raise ConfigError(f"'{key}' has no value: add {key}=<value> to the command line.")
    if type(value) is int and annotation in (float, float | None):
        value = float(value) if abs(value) <= sys.float_info.max else math.inf
    try:
        check(value)
    except SchemaError as error:
        raise ConfigError(str(error.within(key))) from None
    return value
