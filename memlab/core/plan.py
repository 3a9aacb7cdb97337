"""Plan of a run, made from its configuration: everything that the run needs.

All functions are pure: they read no file, no environment variable and nothing of the machine. So a plan made on a
laptop is the plan that runs on the GPUs.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from memlab.core.config import Config, without
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.run_id import run_id
from memlab.core.schema import PlainOf


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
    return arguments


def environment(config: Config) -> dict[str, str]:
    """Return the environment variables of the ranks. They must be set before torch is imported."""
    variables = {"DS_ACCELERATOR": config.hardware.device, "TOKENIZERS_PARALLELISM": "false"}
    if config.allocator.conf:
        # torch has two names for it: the second is documented, but some releases read some options from the first.
        variables["PYTORCH_CUDA_ALLOC_CONF"] = config.allocator.conf
        variables["PYTORCH_ALLOC_CONF"] = config.allocator.conf
    if not needs_hub(config):
        variables["HF_HUB_OFFLINE"] = "1"
    return variables


def needs_hub(config: Config) -> bool:
    """Whether the run may ask the Hugging Face hub for a configuration, weights, a tokenizer or a data set."""
    model_from_hub = config.model.weights == "pretrained" or not config.model.config
    tokenizer_from_hub = config.data.source in ("guanaco", "jsonl")
    return model_from_hub or tokenizer_from_hub
