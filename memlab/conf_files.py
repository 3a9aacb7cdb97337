"""The option files of ``conf/`` read without Hydra, for code that must not import it: analysis and imports.

Understands what the shipped files use: plain keys, and a ``defaults`` list of ``<file>@_here_`` and ``_self_``. Values
that only Hydra can resolve (``${...}``) are left out, so the schema's default stands.
"""

from functools import cache
from pathlib import Path
from typing import Any

from memlab.config import GROUPS, Config, from_dict
from memlab.errors import ConfigError, nearest


def conf_dir() -> str:
    """The folder of the config groups: inside the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")


@cache
def option_values(group: str, option: str) -> dict[str, Any]:
    """The values that ``group=option`` sets. Raises :class:`ConfigError` for an option that does not ship."""
    folder = Path(conf_dir()) / group
    file = folder / f"{option}.yaml"
    if not file.is_file():
        hint = nearest(option, (other.stem for other in folder.glob("*.yaml")))
        raise ConfigError(f"Unknown option '{option}' of config group '{group}'. {hint}")
    return _read(file)


def _read(file: Path) -> dict[str, Any]:
    import yaml

    own = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    values: dict[str, Any] = {}
    for entry in own.pop("defaults", ["_self_"]):
        values |= own if entry == "_self_" else _read(file.parent / f"{entry.removesuffix('@_here_')}.yaml")
    return {key: value for key, value in values.items() if not _needs_hydra(value)}


def _needs_hydra(value: Any) -> bool:
    return isinstance(value, str) and (value == "???" or "${" in value)


def config_of(choices: dict[str, str], values: dict[str, Any]) -> Config:
    """The configuration of these options (group -> option) with these values (dotted key -> value) on top."""
    unknown = sorted(set(choices) - set(GROUPS))
    if unknown:
        raise ConfigError(f"Unknown config group '{unknown[0]}'. {nearest(unknown[0], GROUPS)}")
    composed: dict[str, Any] = {group: dict(option_values(group, option)) for group, option in choices.items()}
    for dotted, value in values.items():
        group, _, key = dotted.rpartition(".")
        (composed.setdefault(group, {}) if group else composed)[key] = value
    return from_dict(composed)
