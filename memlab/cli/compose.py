"""Composition with Hydra: command-line words -> Config.

Hydra accepts unknown keys after a ``+`` and suggests no similar name for a misspelt word. So memlab checks the words
against the schema before Hydra composes, and the composed result afterwards.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from memlab.cli.hydra_errors import COMPOSITION_ERRORS, as_one_line
from memlab.cli.local_hardware import local
from memlab.cli.override_words import ADDED_GROUPS, check_overrides
from memlab.core.config import FREE_DICTS, GROUPS, Config, from_dict
from memlab.core.plan import run_id
from memlab.files.conf_files import conf_dir, list_price

CONFIG_NAME = "config"


@cache
def register() -> None:
    """Register the schema and the resolvers that conf/ uses with Hydra. Further calls in a process do nothing."""
    schema = OmegaConf.structured(Config)
    for free in FREE_DICTS:  # any key is valid in these, without a '+'
        OmegaConf.set_struct(OmegaConf.select(schema, free), False)
    ConfigStore.instance().store(name="schema", node=schema, provider="memlab")
    OmegaConf.register_new_resolver("local", local, replace=True)
    OmegaConf.register_new_resolver("price", _price, replace=True)
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


# --- resolvers --------------------------------------------------------------------------------------------------------


def _price(gpu: str, gpus: int) -> float | None:
    """Resolve ``${price:GPU,GPUS}``: the list price of a GPU; ``None`` if it is not known."""
    found = list_price(gpu, gpus)
    return None if found is None else found.usd_per_gpu_hour


def _run_id(*, _root_: DictConfig) -> str:
    """Resolve ``${run_id:}``: the name of the run folder."""
    return run_id(resolve(_root_))


def _otherwise(value: Any, default: Any) -> Any:
    """Resolve ``${otherwise:${name},${now:%Y-%m-%d}}``: the value, or the default if the value is null."""
    return default if value is None else value
