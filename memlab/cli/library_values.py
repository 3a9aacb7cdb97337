"""Checks of ``deepspeed.<path>=``, ``training_args.<field>=`` and ``model.overrides.<key>=``, values of libraries."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import accumulate
from typing import Any

from memlab.core.command_template import TRAINING_ARGS, template
from memlab.core.config import Config, Model
from memlab.core.config_values import ALL_LEVELS, flat
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.errors import ConfigError, nearest
from memlab.core.foreign_words import OF_DEEPSPEED, OF_TRAINING_ARGUMENTS, Here, in_words_here
from memlab.core.plan import training_arguments
from memlab.core.schema import SchemaError, check_of, shown
from memlab.files import library_keys

KEYS = {TRAINING_ARGS: library_keys.training_arguments, "deepspeed": library_keys.deepspeed_json}
"""Library -> function that returns its keys."""

WORDS: dict[str, dict[str, Here]] = {"deepspeed": OF_DEEPSPEED, TRAINING_ARGS: OF_TRAINING_ARGUMENTS}
"""Library -> its keys that groups set -> the words here."""

KEPT_OUT = {
    "memlab's loop logs nothing, since logging would be measured too": (
        *("logging_", "log_on_each_node", "report_to", "disable_tqdm", "run_name", "project", "trackio_"),
    ),
    "memlab's loop saves nothing, since saving would be measured too": (
        *("save_", "push_to_hub", "hub_", "load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
        *("enable_jit_checkpoint", "resume_from_checkpoint", "ignore_data_skip", "restore_callback_states"),
    ),
    "memlab's loop only trains": (
        *("eval_", "per_device_eval_", "do_", "prediction_loss_only", "include_for_metrics", "batch_eval_metrics"),
        *("bf16_full_eval", "fp16_full_eval"),
    ),
    "memlab's loop has batches and a data loader of its own, from data.* and seq_len.tokens": (
        *("dataloader_", "remove_unused_columns", "label_names", "train_sampling_strategy", "length_column_name"),
        "data_seed",
    ),
    "memlab's loop runs under DeepSpeed, whose keys are deepspeed.<path>=<value>": (
        *("deepspeed", "fsdp", "ddp_find", "ddp_bucket", "ddp_broadcast", "ddp_static", "local_rank"),
        "parallelism_config",
    ),
    "it would change the batch that is measured": ("auto_find_batch_size",),
    "it would reset torch's peaks, which are measured": ("skip_memory_metrics", "memory_breakdown"),
    "it would synchronise every phase, and so change what is measured": ("wall_clock_breakdown", "flops_profiler"),
}
"""Reason -> beginnings of the keys that memlab's own loop cannot take."""

ONLY_A_DEFAULT = ("lr_scheduler_type",)
"""Keys that memlab sets, but that no group and no need of its loop decides."""


def check_library_values(config: Config) -> None:
    """Raise :class:`ConfigError` for a value that the installed library does not take, or that is memlab's to set."""
    groups_alone = replace(config, deepspeed={}, training_args={})
    for library, of_groups in (("deepspeed", deepspeed_config), (TRAINING_ARGS, training_arguments)):
        if values := getattr(config, library):
            _check_types(library, values, KEYS[library]())
            _check_free(library, config, of_groups(groups_alone))
    _check_overrides(config.model)


def _check_overrides(model: Model) -> None:
    """Refuse a key that the family of a shipped model lacks; memlab/launch/preflight.py checks the values."""
    for key in model.overrides:
        family = library_keys.family(str(model.config.get("model_type")))
        if family and key not in {*family.words, *model.config}:
            hint = nearest(key, {*family.keys, *model.config})
            raise ConfigError(f"model.overrides.{key}: {family.name} has no such key. {hint}")


def library_word(key: str, value: str) -> str | None:
    """Return the word here for a key that only a library has: ``training_args.torch_empty_cache_steps=4``. Says why
    where memlab's own loop cannot take it."""
    name, why = key.partition(".")[0], _why_kept_out(key)
    condition = f", only with a trainer of your own ({why})" if why else ""
    return next((f"{library}.{key}={value}{condition}" for library, keys in KEYS.items() if name in keys()), None)


def _why_kept_out(path: str) -> str | None:
    return next((why for why, beginnings in KEPT_OUT.items() if path.startswith(beginnings)), None)


def _check_types(path: str, values: Mapping[str, Any], keys: library_keys.Keys) -> None:
    for key, value in values.items():
        here = f"{path}.{key}"
        if key not in keys:
            raise ConfigError(f"Unknown key '{here}'. {_hint(path, key, value, keys)}")
        if isinstance(keys[key], dict) and isinstance(value, dict):
            _check_types(here, value, keys[key])
        elif isinstance(keys[key], dict):
            raise ConfigError(f"'{here}' has keys of its own, not the value {shown(value)}. {nearest('', keys[key])}")
        else:
            try:
                check_of(keys[key])(value)
            except SchemaError as error:
                raise ConfigError(str(error.within(here))) from None


def _hint(path: str, key: str, value: Any, keys: library_keys.Keys) -> str:
    """Make a hint: the nearest key, or the words here for its values if groups set them."""
    for meant in get_close_matches(key, keys, n=1, cutoff=0.5):
        words = [_word_of_a_group(*each) for each in flat({f"{path}.{meant}": value}, ALL_LEVELS).items()]
        if None not in words:
            return f"Here it is {' '.join(filter(None, words))}."
    return nearest(key, keys, f"{path}.")


def _word_of_a_group(dotted: str, value: Any) -> str | None:
    """Return the words here for a value of a library that a group sets; ``None`` for any other."""
    library, _, path = dotted.partition(".")
    text, words = value if isinstance(value, str) else json.dumps(value), WORDS[library]
    beginnings = accumulate(path.split("."), "{}.{}".format)  # of a.b.c: a, a.b and a.b.c
    return next((in_words_here(words[part], text) for part in beginnings if part in words), None)


def _check_free(library: str, config: Config, composed: dict[str, Any]) -> None:
    """Raise :class:`ConfigError` for a value that a group sets, that breaks memlab's loop, or that has no effect.

    ``composed``: the library's values that the groups set.
    """
    set_by_groups = flat(composed, ALL_LEVELS)
    for path, value in flat(getattr(config, library), ALL_LEVELS).items():
        if word := _word_of_a_group(f"{library}.{path}", value):
            raise ConfigError(f"'{library}.{path}' is {_key_of(word)} here: {word}.")
        is_set_by_groups = path not in ONLY_A_DEFAULT and set_by_groups.get(path) not in (None, {})
        why = _why_kept_out(path) or ("memlab sets it, by the groups" if is_set_by_groups else None)
        if why and not config.is_command:
            raise ConfigError(f"'{library}.{path}' cannot be set: {why}. Leave it out.")
        if path.startswith("optimizer.") and "optimizer" not in composed:
            raise ConfigError(f"'{library}.{path}' is of DeepSpeed's own optimizers: add optimizer.source=deepspeed.")
        place = f"{library}.{path}"
        if library == TRAINING_ARGS and not {place, TRAINING_ARGS} & template(config).places:
            raise ConfigError(
                f"'{place}' has no effect: training.command has no place for it. Write {{{place}}} where your script "
                "takes it."
            )


def _key_of(words: str) -> str:
    """Return the last key of words whose values may hold spaces: ``batch.micro=<samples of one GPU>``."""
    return re.findall(r"(?:^| )([\w.]+)=", words)[-1]
