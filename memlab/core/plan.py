"""Plan of a run, made from its configuration: everything that the run needs.

All functions are pure: they read no file, no environment variable and nothing of the machine. So a plan made on a
laptop is the plan that runs on the GPUs. The name of its folder and the keys that tell which runs are equal come from
the configuration alone.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from memlab.core.config import LIBRARIES, Config, Offload
from memlab.core.config_values import ALL_LEVELS, flat, merged, to_dict, without
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.schema import PlainOf

NOT_MEASURED = (
    *("name", "force", "objective", "predict", "sweep", "measure.timeout_s", "measure.repeats", "hardware.hostfile"),
)
"""Keys that do not change what is measured, so they are left out of the hash of a run."""

SHAPE = ("seq_len.tokens", "batch.micro")
"""Keys that may differ between the points of one launch: they change the data, not the engine."""

LATER_GROUPS = {"adapter": "none", "kernels": "none", "training": "memlab"}
"""Groups that older records lack -> the option that they stand for, whose values are the group's defaults. Defaults are
left out of the hash, so the names of older run folders stay valid."""

LATER_KEYS: dict[str, Any] = {
    **{"measure.protocol": "steps", "measure.profile": False, "measure.snapshot_ranks": []},
    **{"training.script": "", "training.words": {}, "training.trainer": ""},
    **{name: {} for name in (*LIBRARIES, "own")},
}
"""Single keys that older records lack -> their defaults, which are also left out of the hash."""

UNREMARKABLE = frozenset({"none", "default", "bf16", "sdpa", "AdamW", "random", "memlab"})
"""Common values, which are left out of the names of run folders."""


ALLOCATOR_WORDS = {"": "default", "expandable_segments:True": "expandable"}


def run_id(config: Config, unknown: Collection[str] = ()) -> str:
    """Name the run folder: ``<main settings>-<hash of the resolved configuration>``.

    Only values count: an option, and the same values typed one by one, give the same name and so the same run folder.
    ``unknown``: groups and dotted keys that are not known; the name leaves them out.
    """
    return f"{_slug(config, unknown)}-{config_hash(config, unknown)}"


def config_hash(config: Config, unknown: Collection[str] = ()) -> str:
    """Hash everything that can change what is measured; eight hexadecimal digits. ``unknown`` as in :func:`run_id`."""
    return _hash_without(config, (*NOT_MEASURED, *unknown))


def shape_of(config: Config) -> tuple[int, int]:
    """Return (micro batch, tokens), which may differ between the points of one launch."""
    return config.batch.micro, config.seq_len.tokens


def size_of(config: Config) -> int:
    """Return the value of what ``sweep.search`` varies: the micro batch, or the sequence length."""
    return config.batch.micro if config.sweep.search == "batch" else config.seq_len.tokens


def with_size(config: Config, size: int) -> Config:
    """Copy a configuration with another :func:`size_of` it."""
    if config.sweep.search == "batch":
        return replace(config, batch=replace(config.batch, micro=size))
    return replace(config, seq_len=replace(config.seq_len, tokens=size))


def engine_key(config: Config) -> str:
    """Return a key that is equal for configurations that can be measured in one launch."""
    return _hash_without(config, NOT_MEASURED + SHAPE)


def memory_key(config: Config) -> str:
    """Return a key that is equal for configurations that need the same memory at the same shape."""
    return _hash_without(config, (*NOT_MEASURED, *SHAPE, "measure.repeat"))


def subject_key(config: Config) -> str:
    """Return a key that is equal for repeats of the same experiment."""
    return _hash_without(config, (*NOT_MEASURED, "measure.repeat"))


def _hash_without(config: Config, keys: Iterable[str]) -> str:
    values = to_dict(config)
    known = flat(values)
    later = [group for group in LATER_GROUPS if getattr(config, group) == getattr(Config(), group)]
    later += [key for key, absent in LATER_KEYS.items() if known.get(key) == absent]
    identity = without(values, [*keys, *later])
    if "usd_per_gpu_hour" in (hardware := identity.get("hardware", {})):
        # Older memlab hashed the price of a node in the place of the price of a GPU, and names stay the same.
        price = hardware.pop("usd_per_gpu_hour")
        hardware["usd_per_hour"] = None if price is None else round(price * config.hardware.gpus, 9)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def _slug(config: Config, unknown: Collection[str]) -> str:
    offload, batch, adapter, hardware = config.offload, config.batch, config.adapter, config.hardware
    parts = {
        "model.path": config.model.path.rstrip("/").split("/")[-1],
        "training.loop": config.training.name,
        "zero_stage.stage": f"zero{config.zero_stage.stage}",
        "offload.optimizer": _offload_word(offload),
        "allocator.conf": ALLOCATOR_WORDS.get(config.allocator.conf, "allocator"),
        "checkpointing.enabled": "checkpointing" if config.checkpointing.enabled else "none",
        "seq_len.tokens": f"s{config.seq_len.tokens}",
        "batch.micro": f"b{batch.micro}",
        "batch.accumulation": f"x{batch.accumulation}" if batch.accumulation > 1 else "none",
        "precision.dtype": config.precision.dtype,
        "attention.implementation": config.attention.implementation,
        "optimizer.name": config.optimizer.name,
        "adapter.method": f"{adapter.method}{adapter.rank}" if adapter.method != "none" else "none",
        "kernels.implementation": config.kernels.implementation,
        "data.source": config.data.source,
        **{name: _values_word(getattr(config, name)) for name in (*LIBRARIES, "own")},
        "hardware.nodes": f"{hardware.nodes}nodes" if hardware.nodes > 1 else "none",
        "hardware.gpus": f"{hardware.gpus}x{hardware.gpu.removeprefix('NVIDIA ') or hardware.device}",
        "measure.repeat": f"r{config.measure.repeat}" if config.measure.repeat > 1 else "none",
        "mode": "predicted" if config.mode == "predict" else "none",
    }
    known = [part for key, part in parts.items() if not {key, key.partition(".")[0]} & set(unknown)]
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", part) for part in known if part not in UNREMARKABLE)[:150]


def _offload_word(offload: Offload) -> str:
    """Name the offload like the option of the group, if there is one: none, optimizer, param_nvme, all, ..."""
    places = {"optimizer": offload.optimizer, "param": offload.param}
    if offload.optimizer == offload.param != "none":
        places = {"all": offload.optimizer}
    words = [name if place == "cpu" else f"{name}_{place}" for name, place in places.items() if place != "none"]
    return "_and_".join(words) or "none"


def _values_word(values: dict[str, Any]) -> str:
    """Write the values of a library, each under the last part of its key: torch_empty_cache_steps_4."""
    return "-".join(f"{key.rpartition('.')[2]}_{value}" for key, value in flat(values, ALL_LEVELS).items()) or "none"


@dataclass(frozen=True)
class Plan:
    """One experiment, ready to run.

    ``deepspeed`` is the DeepSpeed JSON. ``training_args`` holds the keyword arguments of
    ``transformers.TrainingArguments``. ``environment`` holds environment variables that must be set in the ranks before
    torch is imported. ``world_size`` is the number of ranks. ``unknown_config``: groups and dotted keys of ``config``
    that only a command of the user's own decides.
    """

    run_id: str
    config: Annotated[Config, PlainOf(dict[str, Any])]
    choices: dict[str, str]
    world_size: int
    deepspeed: dict[str, Any]
    training_args: dict[str, Any]
    environment: dict[str, str]
    unknown_config: list[str] = field(default_factory=list)

    @property
    def ranks_per_node(self) -> int:
        return self.config.hardware.gpus

    @property
    def is_multi_node(self) -> bool:
        return self.config.hardware.nodes > 1

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        return {**values, "config": without(values["config"], self.unknown_config)}


def make_plan(config: Config, choices: dict[str, str]) -> Plan:
    """Make the plan of a configuration. ``choices`` maps each group to the chosen option."""
    return Plan(
        run_id=run_id(config),
        config=config,
        choices=dict(choices),
        world_size=config.hardware.world_size,
        deepspeed=deepspeed_config(config),
        training_args=training_arguments(config),
        environment=environment(config),
    )


def training_arguments(config: Config) -> dict[str, Any]:
    """Make the arguments of ``transformers.TrainingArguments``; ``deepspeed`` names the JSON file in the run folder."""
    optimizer, checkpointing = config.optimizer, config.checkpointing
    arguments: dict[str, Any] = {
        "output_dir": "trainer",
        "deepspeed": "deepspeed.json",
        "per_device_train_batch_size": config.batch.micro,
        "gradient_accumulation_steps": config.batch.accumulation,
        "max_steps": config.measure.warmup + config.measure.steps,
        "learning_rate": optimizer.lr,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "adam_epsilon": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.gradient_clipping,
        "lr_scheduler_type": "constant",
        "bf16": config.precision.dtype == "bf16",
        "fp16": config.precision.dtype == "fp16",
        "gradient_checkpointing": checkpointing.enabled,
        "seed": config.seed,
        # The loop only trains: no logging, saving or reporting. Trainer keeps NaN losses instead of filtering them out.
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_nan_inf_filter": False,
        "remove_unused_columns": False,
    }
    if checkpointing.enabled:
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": checkpointing.reentrant}
    if config.kernels.implementation == "liger":
        arguments["use_liger_kernel"] = True
    if optimizer.source == "transformers":
        arguments["optim"] = optimizer.name
    if config.hardware.device == "cpu":
        arguments["use_cpu"] = True
    return merged(arguments, config.training_args)


ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""torch's two names of one variable: the second is documented, but some releases read some options from the first."""


def environment(config: Config) -> dict[str, str]:
    """Return the environment variables of the ranks. They must be set before torch is imported."""
    variables = {"DS_ACCELERATOR": config.hardware.device, "TOKENIZERS_PARALLELISM": "false"}
    if config.allocator.conf:
        variables |= dict.fromkeys(ALLOCATOR_VARIABLES, config.allocator.conf)
    if not needs_hub(config):
        variables["HF_HUB_OFFLINE"] = "1"
    return variables


def needs_hub(config: Config) -> bool:
    """Whether the run may ask the Hugging Face hub for a configuration, weights, a tokenizer or a data set."""
    has_tokenizer = config.data.source not in ("guanaco", "jsonl")
    return config.model.weights == "pretrained" or not config.model.config or not has_tokenizer
