"""Reader of ``conf/``, its option files and its price list, for code that must not import Hydra: analysis and imports.

It supports the syntax of the shipped files: plain keys, and a ``defaults`` list of ``<file>@_here_`` and ``_self_``. It
skips values that only Hydra can resolve (``${...}``); these keep the schema's default.
"""

import csv
import json
import re
import shlex
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from memlab.core.config import GROUPS, LIBRARIES, MISSING, Config
from memlab.core.config_values import ALL_LEVELS, flat, from_dict, merged, with_own_apart
from memlab.core.errors import ConfigError, nearest
from memlab.core.plan import NOT_MEASURED


@cache
def conf_dir() -> str:
    """Return the folder of the config groups: inside the package if installed from a wheel, else beside the package."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")


def options_of(group: str, config_dir: str | None = None) -> list[str]:
    """List the options of a config group: shipped ones and the user's own in ``config_dir``."""
    folders = [Path(conf_dir()), *([Path(config_dir)] if config_dir else [])]
    return sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})


@cache
def option_values(group: str, option: str) -> dict[str, Any]:
    """Return the values that ``group=option`` sets. Raises :class:`ConfigError` for an option that is not shipped."""
    file = Path(conf_dir(), group, f"{option}.yaml")
    if not file.is_file():
        raise ConfigError(f"Unknown option '{option}' of config group '{group}'. {nearest(option, options_of(group))}")
    values = _read(file)
    if group == "hardware" and (price := list_price(values.get("gpu", ""), values.get("gpus", 1))):
        values["usd_per_gpu_hour"] = price.usd_per_gpu_hour
    return values


@cache
def shipped_models() -> dict[str, dict[str, Any]]:
    """Return each shipped option of the group ``model`` with its ``model.config``."""
    return {name: option_values("model", name).get("config", {}) for name in options_of("model")}


def shipped_model(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the option of the group ``model`` for this Hugging Face configuration, and its ``model.config``.

    The configuration may have more keys than the option, which then have transformers' defaults. The option is ``hf``,
    without ``model.config``, if no shipped model has these values.
    """
    for name, known in shipped_models().items():
        if known and all(config.get(key) == value for key, value in known.items()):
            return name, known
    return "hf", {}


def known_gpu(name: str) -> dict[str, Any]:
    """Return the values of conf/hardware/gpu/ for a GPU of this name, as the driver reports it; empty if none fits."""
    files = sorted(Path(conf_dir(), "hardware", "gpu").glob("*.yaml"))
    return next((values for values in map(_read, files) if values["gpu"].lower() in name.lower()), {})


def gpu_here(name: str, memory_gib: float | None) -> dict[str, Any]:
    """Return the values of a GPU that a machine has, by the name and the memory that the driver or torch reports.

    A GPU of conf/hardware/gpu/ has the values there, so that a measurement has the configuration of its prediction; a
    part of a GPU keeps its own memory.
    """
    listed = known_gpu(name)
    own: dict[str, Any] = {"gpu": name, "memory_gib": memory_gib}
    if listed and _plain_name(listed["gpu"]) == _plain_name(name):
        own["gpu"] = listed["gpu"]
        if memory_gib is None or abs(memory_gib - listed["memory_gib"]) <= DRIVERS_SHARE * memory_gib:
            own["memory_gib"] = listed["memory_gib"]
    return {**listed, **own}


DRIVERS_SHARE = 0.02
"""Largest share of a GPU's memory by which its totals differ: NVML counts what the driver keeps, torch does not."""


@dataclass(frozen=True)
class Price:
    """List price of a GPU: a row of conf/hardware/prices.csv. ``machine_gpus``: GPUs of the machine, which is rented
    whole."""

    provider: str
    machine_gpus: int
    usd_per_gpu_hour: float
    date: str

    def machines(self, gpus: int) -> int:
        """Return the number of machines that are rented for this many GPUs."""
        return ceil(gpus / self.machine_gpus)


def list_price(gpu: str, gpus: int) -> Price | None:
    """Return the list price of a GPU, by the name that the driver reports; ``None`` if the list lacks the GPU.

    The price is that of the smallest listed machine with ``gpus`` GPUs, or of the largest machine if none has as many.
    """
    offers = _prices().get(_plain_name(gpu), [])
    return next((price for price in offers if price.machine_gpus >= gpus), offers[-1] if offers else None)


@cache
def _prices() -> dict[str, list[Price]]:
    """Read conf/hardware/prices.csv: name of the GPU -> its prices, smallest machine first."""
    lines = Path(conf_dir(), "hardware", "prices.csv").read_text(encoding="utf-8").splitlines()
    found: dict[str, list[Price]] = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        price = Price(row["provider"], int(row["machine_gpus"]), float(row["usd_per_gpu_hour"]), row["date"])
        found.setdefault(_plain_name(row["gpu"]), []).append(price)
    return {gpu: sorted(prices, key=lambda price: price.machine_gpus) for gpu, prices in found.items()}


def _plain_name(gpu: str) -> str:
    return gpu.removeprefix("NVIDIA ").lower()


NAMED_BY = {"adapter": ("method",), "checkpointing": ("enabled",)}
"""Group -> the keys by which an option is recognised, where an option sets other keys too."""


def matching_option(group: str, values: dict[str, Any]) -> str | None:
    """Return the shipped option of a group that these values agree with: the one that sets the most keys.

    ``values`` may lack keys; an option that sets one of them does not match. ``None`` if no option does.
    """
    if group == "model":
        return shipped_model(values["config"])[0] if "config" in values else None
    options = {name: _identity(group, option_values(group, name)) for name in options_of(group)}
    found = [name for name, set in options.items() if set and set.items() <= values.items()]
    return max(found, key=lambda name: len(options[name]), default=None)


def _identity(group: str, option: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in option.items() if key in NAMED_BY.get(group, option)}


def parse_yaml(text: str) -> Any:
    """Parse YAML into plain data as Hydra does: ``1e-5`` is a number, although YAML 1.1 takes it for text.

    Raises ``yaml.YAMLError``.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the one in C is six times as fast
        """Separate class, so that the resolver added below does not change PyYAML's own."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))
    return yaml.load(text, Loader)


def _read(file: Path) -> dict[str, Any]:
    own = parse_yaml(file.read_text(encoding="utf-8")) or {}
    values: dict[str, Any] = {}
    for entry in own.pop("defaults", ["_self_"]):
        if isinstance(entry, str):  # else an option that the file chooses for another group
            more = own if entry == "_self_" else _read(file.parent / f"{entry.removesuffix('@_here_')}.yaml")
            values = merged(values, more)
    return {key: value for key, value in values.items() if not _needs_hydra(value)}


def _needs_hydra(value: Any) -> bool:
    return isinstance(value, str) and (value == "???" or "${" in value)


def config_of(choices: dict[str, str], values: dict[str, Any]) -> Config:
    """Build the configuration of these options (group -> option), then set these values (dotted key -> value)."""
    if unknown := sorted(set(choices) - set(GROUPS)):
        raise ConfigError(f"Unknown config group '{unknown[0]}'. {nearest(unknown[0], GROUPS)}")
    composed: dict[str, Any] = {group: dict(option_values(group, option)) for group, option in choices.items()}
    for dotted, value in values.items():
        group, _, key = dotted.rpartition(".")
        (composed.setdefault(group, {}) if group else composed)[key] = value
    return from_dict(composed)


@cache
def default_options() -> dict[str, str]:
    """Return group -> option of the defaults list in ``conf/config.yaml``."""
    entries = parse_yaml(Path(conf_dir(), "config.yaml").read_text(encoding="utf-8"))["defaults"]
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    return {group: option for group, option in pairs if group in GROUPS}


@cache
def default_config() -> Config:
    """Return the configuration of a command line without words, but of no machine and no sweep."""
    left_out = (*NOT_MEASURED, "hardware")
    return config_of({group: option for group, option in default_options().items() if group not in left_out}, {})


def overrides_of(choices: dict[str, str], config: dict[str, Any]) -> list[str]:
    """List the command-line words that compose ``config``: ``group=option``, and values that differ from the option.

    Options that conf/config.yaml chooses by default are left out, except the model.
    """
    groups = [group for group in GROUPS if group not in NOT_MEASURED]
    implied = {group: option for group, option in default_options().items() if group != "model"}
    words = [
        f"{group}={choices[group]}" for group in groups if group in choices and choices[group] != implied.get(group)
    ]
    for group in groups:
        given = usual_values(group, choices.get(group))
        for key, value in config.get(group, {}).items():
            if value != given.get(key, MISSING) and value not in ({}, MISSING):
                words.append(f"{group}.{key}={_word(value)}")
    free = flat({name: config[name] for name in (*LIBRARIES, "seed") if config.get(name)}, ALL_LEVELS)
    own = flat({"+" + key: value for key, value in with_own_apart(config)["own"].items()}, ALL_LEVELS)
    return [*words, *(f"{key}={_word(value)}" for key, value in {**free, **own}.items())]


def usual_values(group: str, option: str | None) -> dict[str, Any]:
    """Return the values of a group of memlab's with a shipped option; those of the schema for a user's own option or
    group, whose values are then all listed."""
    schema = asdict(getattr(Config(), group)) if group in GROUPS else {}
    try:
        return schema | option_values(group, option) if option else schema
    except ConfigError:
        return schema


def _word(value: Any) -> str:
    """Write a value for Hydra's command line in a shell."""
    return shlex.quote(_hydra_text(value))


def _hydra_text(value: Any) -> str:
    """Write a value in Hydra's grammar: a text has quotes if Hydra would split it or take it for another type."""
    if isinstance(value, list):
        return f"[{', '.join(map(_hydra_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_hydra_text(each)}' for key, each in value.items())}}}"
    if not isinstance(value, str):
        return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    if re.fullmatch(r"[\w./-]*", value) and not _is_number(value) and value.lower() not in ("true", "false", "null"):
        return value
    mark = "'" if '"' in value else '"'  # double quotes: shlex.quote adds single ones
    return mark + re.sub(rf"(\\*)({mark}|$)", lambda end: end[1] * 2 + end[2].replace(mark, f"\\{mark}"), value) + mark


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
