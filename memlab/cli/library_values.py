"""Checks of ``deepspeed.<path>=`` and ``training_args.<field>=``, the values that pass by the groups."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

from memlab.core.command_template import TRAINING_ARGS, template
from memlab.core.config import ALL_LEVELS, Config, flat
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.errors import ConfigError, nearest
from memlab.core.foreign_words import OF_DEEPSPEED, OF_TRAINING_ARGUMENTS, Here, in_words_here
from memlab.core.plan import training_arguments
from memlab.core.schema import SchemaError, check_of, shown
from memlab.files import library_keys

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
    if config.deepspeed:
        _check_types("deepspeed", config.deepspeed, library_keys.deepspeed_json())
        _check_free("deepspeed", config, OF_DEEPSPEED, deepspeed_config(groups_alone))
    if config.training_args:
        _check_types("training_args", config.training_args, library_keys.training_arguments())
        _check_free("training_args", config, OF_TRAINING_ARGUMENTS, training_arguments(groups_alone))


def library_word(key: str, value: str) -> str | None:
    """Return the word here for a key that only a library has: ``training_args.torch_empty_cache_steps=4``."""
    name = key.partition(".")[0]
    libraries = {"training_args": library_keys.training_arguments, "deepspeed": library_keys.deepspeed_json}
    return next((f"{library}.{key}={value}" for library, keys in libraries.items() if name in keys()), None)


def _check_types(path: str, values: Mapping[str, Any], keys: library_keys.Keys) -> None:
    for key, value in values.items():
        here = f"{path}.{key}"
        if key not in keys:
            raise ConfigError(f"Unknown key '{here}'. {nearest(key, keys)}")
        if isinstance(keys[key], dict) and isinstance(value, dict):
            _check_types(here, value, keys[key])
        elif isinstance(keys[key], dict):
            raise ConfigError(f"'{here}' has keys of its own, not the value {shown(value)}. {nearest('', keys[key])}")
        else:
            try:
                check_of(keys[key])(value)
            except SchemaError as error:
                raise ConfigError(str(error.within(here))) from None


def _check_free(library: str, config: Config, words: Mapping[str, Here], composed: dict[str, Any]) -> None:
    """Raise :class:`ConfigError` for a value that a group sets, that breaks memlab's loop, or that has no effect.

    ``words``: key -> words of the group that sets it. ``composed``: the library's values that the groups set.
    """
    is_command = config.training.loop == "command"
    for path, value in flat(getattr(config, library), ALL_LEVELS).items():
        text = value if isinstance(value, str) else json.dumps(value)
        if here := next((words[part] for part in _beginnings(path) if part in words), None):
            word = in_words_here(here, text)
            raise ConfigError(f"'{library}.{path}' is {_key_of(word)} here: {word}.")
        for reason, beginnings in KEPT_OUT.items() if not is_command else ():
            if path.startswith(beginnings):
                raise ConfigError(f"'{library}.{path}' cannot be set: {reason}. Leave it out.")
        if path not in ONLY_A_DEFAULT and not is_command and _is_set(composed, path):
            raise ConfigError(f"'{library}.{path}' cannot be set: memlab sets it, by the groups. Leave it out.")
        if path.startswith("optimizer.") and "optimizer" not in composed:
            raise ConfigError(f"'{library}.{path}' is of DeepSpeed's own optimizers: add optimizer.source=deepspeed.")
        place = f"{library}.{path}"
        if is_command and library == TRAINING_ARGS and not {place, TRAINING_ARGS} & template(config).places:
            raise ConfigError(
                f"'{place}' has no effect: training.command has no place for it. Write {{{place}}} where your script "
                "takes it."
            )


def _beginnings(path: str) -> Iterator[str]:
    """Yield ``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``."""
    parts = path.split(".")
    return (".".join(parts[: count + 1]) for count in range(len(parts)))


def _key_of(words: str) -> str:
    return words.split()[-1].partition("=")[0]


def _is_set(composed: dict[str, Any], path: str) -> bool:
    found = reduce(lambda at, key: at.get(key) if isinstance(at, dict) else at, path.split("."), composed)
    return found is not None and not isinstance(found, dict)
