"""Composition with Hydra: command-line words -> Config.

Hydra gets the names and defaults of all keys as plain values. It refuses a key that has no name; every other check is
that of the schema (memlab/core/config_values.py), after Hydra has composed.
"""

from collections.abc import Container, Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from memlab.cli.hydra_errors import HYDRA_ERRORS, as_one_line, with_word_here
from memlab.cli.library_values import check_library_values
from memlab.cli.override_words import PACKAGELESS, check_gpu, check_own, check_words, instead_of_a_name, with_plus
from memlab.core.config import FREE_DICTS, GROUPS, Config, Hardware
from memlab.core.config_values import from_dict, to_dict, with_own_apart, with_own_names
from memlab.core.errors import ConfigError, UnknownKey
from memlab.core.plan import run_id
from memlab.core.sizes import GIB
from memlab.files.conf_files import conf_dir, gpu_here, known_gpu, list_price
from memlab.system import machine

CONFIG_NAME = "config"


@cache
def register() -> None:
    """Register the schema and the resolvers that conf/ uses with Hydra. Further calls in a process do nothing."""
    schema = OmegaConf.create(with_own_names(to_dict(Config())))
    for free in FREE_DICTS:  # any key is valid in these, without a '+'
        OmegaConf.set_struct(OmegaConf.select(schema, free), False)
    ConfigStore.instance().store(name="schema", node=schema, provider="memlab")
    resolvers: dict[str, Any] = {"local": _local, "price": _price, "run_id": _run_id, "otherwise": _otherwise}
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def compose_config(overrides: Sequence[str], config_dir: str | None = None) -> tuple[Config, dict[str, str]]:
    """Compose the configuration of these command-line words. Also returns the option chosen for each group.

    Raises :class:`ConfigError` if a word is wrong.
    """
    return composed_config(compose_words(overrides, config_dir))


def compose_words(overrides: Sequence[str], config_dir: str | None = None) -> DictConfig:
    """Have Hydra compose these command-line words. Raises :class:`ConfigError` if it cannot."""
    check_words(overrides)
    register()
    GlobalHydra.instance().clear()
    words = [*with_plus(overrides), *([_search_path(config_dir)] if config_dir else [])]
    try:
        with initialize_config_dir(conf_dir(), version_base="1.3"):
            return compose(CONFIG_NAME, words, return_hydra_config=True)
    except HYDRA_ERRORS as error:
        raise as_one_line(error, overrides) from error


def _search_path(config_dir: str) -> str:
    """Return the override word that adds a folder of config groups to Hydra's search path."""
    escaped = f"file://{Path(config_dir).resolve()}".replace("\\", "\\\\").replace("'", "\\'")
    return f"hydra.searchpath=['{escaped}']"


def composed_config(composed: DictConfig) -> tuple[Config, dict[str, str]]:
    """Convert what Hydra composed into a typed, checked configuration, and the option chosen for each group."""
    _give_to_hydra(composed)
    choices = choices_of(composed.hydra)
    config = resolve(composed)
    check_gpu(config, choices, composed.hydra.overrides.task)
    return config, choices


def hydra_folder(composed: DictConfig, key: str) -> str:
    """Return ``run.dir``, ``sweep.dir`` or ``sweep.subdir`` of what Hydra composed. Its name may have ``${hydra:...}``.

    Raises :class:`ConfigError` for a name that cannot be resolved.
    """
    _give_to_hydra(composed)
    try:
        return str(OmegaConf.select(composed.hydra, key))
    except OmegaConfBaseException as error:
        raise as_one_line(error) from error


def _give_to_hydra(composed: DictConfig) -> None:
    """Let ``${hydra:...}`` in the values of a configuration name its own values of Hydra."""
    HydraConfig.instance().cfg = cast(HydraConf, composed)


def resolve(composed: DictConfig) -> Config:
    """Convert what Hydra composed into a typed configuration."""
    values: dict[str, Any] = {}
    try:
        for key, value in composed.items():
            if key != "hydra":
                values[str(key)] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        raise as_one_line(error) from error
    try:
        config = from_dict(with_own_apart(values), strict=False)
        check_own(config.own)
    except UnknownKey as error:
        raise with_word_here(error, OmegaConf.select(composed, "hydra.overrides.task") or []) from error
    training = config.training
    if not config.is_command and (training.command or training.script):
        raise ConfigError(
            "memlab's own training runs no training.command and no training.script: add training=command, or write "
            "'loop: command' into the file of your trainer."
        )
    check_library_values(config)
    return config


def choices_of(hydra: DictConfig) -> dict[str, str]:
    """Return group -> chosen option, also for groups of the user's own, from Hydra's own configuration. Raises
    :class:`ConfigError` if one of memlab's has none: Hydra composes ``~group`` and ``group=[one,two]`` into values that
    the user did not choose."""
    chosen = dict(hydra.runtime.choices)
    if without := next((group for group in GROUPS if chosen.get(group) is None), None):
        raise ConfigError(
            f"Config group '{without}' needs one option: {without}=<option>. Several are a sweep, with -m and commas: "
            f"-m {without}=<option>,<option>."
        )
    own = [group for group in chosen if group not in (*GROUPS, *PACKAGELESS) and not group.startswith("hydra/")]
    return {group: str(chosen[group]) for group in (*GROUPS, *own) if chosen[group] is not None}


def compose_batch(
    loader: ConfigLoader, master: DictConfig, batch: Sequence[Sequence[str]], first: int = 0
) -> Iterator[DictConfig]:
    """Compose each job of a sweep from its words; the result equals that of Hydra's ``load_sweep_config``.

    For every job, Hydra would read and merge about thirty files. The chosen options alone decide which files. So Hydra
    composes each combination of options once, and the values in the other words are set on a copy. ``first``: the
    number of the first job (``hydra.job.num``).
    """
    choices_of(master.hydra)  # refuses a group without one option, whose words would look like values below
    parse = cache(OverridesParser.create().parse_override)  # most words are those of many jobs
    composed: dict[tuple[str, ...], DictConfig] = {}
    groups = master.hydra.runtime.choices
    for number, words in enumerate(batch, first):
        overrides = [parse(word) for word in words]
        options = tuple(str(override.input_line) for override in overrides if not _is_value(override, groups))
        if options not in composed:
            composed[options] = loader.load_sweep_config(master, list(options))
            if _swept(composed[options]) != _swept(master):
                raise ConfigError(
                    "+experiment: an experiment that is a sweep cannot be one of several values, since all would get "
                    "the values of one. Run one after the other."
                )
        job = deepcopy(composed[options])
        for override in overrides:
            if _is_value(override, groups):
                OmegaConf.update(job, override.key_or_group, override.value(), merge=True)
        _note_words(job, [override for override in overrides if not override.is_hydra_override()])
        with open_dict(job):
            job.hydra.job.num = number
            job.hydra.job.id = str(number)
        yield job


def _swept(composed: DictConfig) -> Any:
    """Return the values that an experiment sweeps."""
    return OmegaConf.select(composed, "hydra.sweeper.params")


def _is_value(override: Override, groups: Container[str]) -> bool:
    """Whether this word only replaces a value, and does not change which files Hydra reads."""
    plain = not (override.is_add() or override.is_force_add() or override.is_delete() or override.package)
    return plain and override.key_or_group not in groups and not override.is_hydra_override()


def _note_words(job: DictConfig, overrides: Sequence[Override]) -> None:
    """Store the words of a job where Hydra keeps them."""
    job.hydra.overrides.task = [override.input_line for override in overrides]
    if OmegaConf.is_interpolation(job.hydra.job, "override_dirname"):  # Hydra 1.4
        return
    names = job.hydra.job.config.override_dirname
    kept = sorted(str(word.input_line) for word in overrides if word.key_or_group not in names.exclude_keys)
    job.hydra.job.override_dirname = names.item_sep.join(kept).replace("=", names.kv_sep)


# --- resolvers --------------------------------------------------------------------------------------------------------


def _local(key: str, mode: str, gpu: str | None = None) -> Any:
    """Resolve ``${local:gpus,${mode}}`` of conf/hardware/auto.yaml: a hardware value of this machine.

    ``gpu``: name of the GPU that the value is of; one that is not here has the values of its datasheet. Raises
    :class:`ConfigError` for a prediction without a GPU, and for a GPU that memlab does not know.
    """
    here = hardware_here(mode)
    if key == "gpu" and here["gpu"] is None:
        raise ConfigError("A prediction is for GPUs that you name: add hardware=a100_80g_x8 hardware.gpus=4.")
    if gpu in (None, here["gpu"]) or str(gpu).isdigit():  # a number is refused by name, after the composition
        return here[key]
    if not (datasheet := known_gpu(str(gpu))):
        raise ConfigError(f"memlab does not know the GPU '{gpu}'. {instead_of_a_name(gpu)}")
    return datasheet.get(key)


@cache
def hardware_here(mode: str) -> dict[str, Any]:
    """Return the values of the group hardware for this machine, as far as they are known."""
    nothing_known: dict[str, Any] = dict.fromkeys(vars(Hardware()))
    if mode == "compose":  # nothing is asked of this machine
        return {**nothing_known, "device": "cuda", "gpu": "", "gpus": 1}
    found = machine.detect().gpus
    if not found:
        usual = {"device": "cuda", "gpus": 1} if mode == "predict" else {"device": "cpu", "gpu": "CPU", "gpus": 2}
        return {**nothing_known, **usual}
    here = gpu_here(found[0].name, round(found[0].total_bytes / GIB, 2))
    return {**nothing_known, **here, "device": "cuda", "gpus": len(found)}


def _price(gpu: str, gpus: int) -> float | None:
    """Resolve ``${price:GPU,GPUS}``: the list price of a GPU; ``None`` if it is not known."""
    found = list_price(str(gpu), gpus)
    return None if found is None else found.usd_per_gpu_hour


def _run_id(*, _root_: DictConfig) -> str:
    """Resolve ``${run_id:}``: the name of the run folder."""
    return run_id(resolve(_root_))


def _otherwise(value: Any, default: Any) -> Any:
    """Resolve ``${otherwise:${name},${now:%Y-%m-%d}}``: the value, or the default if the value is null."""
    return default if value is None else value
