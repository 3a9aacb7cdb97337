"""Configurations that cannot be predicted yet, one row each, in the form of memlab/rules/."""

from memlab.core.config import Config
from memlab.rules.machine import missing_extras
from memlab.rules.optimizer import optimizer_package
from memlab.rules.rule import Rule, broken
from memlab.rules.unsupported import unsupported
from memlab.system.machine import Machine

ON_A_CPU = Rule(
    lambda c: c.hardware.device == "cpu",
    "a CPU has no caching allocator to predict",
    "the hardware entry of a GPU, for instance hardware=h100_x8",
)

LIMITS = (
    Rule(
        lambda c: "nvme" in (c.offload.optimizer, c.offload.param),
        "DeepSpeed's NVMe swapping reads and writes real files, and no stand-in for it exists yet",
        "offload=all",
    ),
    Rule(
        lambda c: optimizer_package(c) == "torchao",
        "torchao compiles the steps of its optimizers for tensors of its own, which has not been tried",
        "optimizer=adamw_8bit",
    ),
    Rule(
        lambda c: bool(c.training_args.get("torch_compile")),
        "several lengths are traced in one process, where the compiler would take later ones as dynamic",
        "memlab predict -- COMMAND with your training script, or training_args.torch_compile=false",
    ),
    Rule(
        lambda c: c.optimizer.source == "deepspeed" and c.optimizer.name.lower() == "lamb",
        "the kernel of DeepSpeed's LAMB has no stand-in yet",
        "optimizer=adamw",
    ),
    Rule(
        lambda c: any(value for name, value in vars(c.zero_stage).items() if name.startswith("zero_quantized_")),
        "DeepSpeed's quantisation kernels have no stand-in yet",
        "leave the zero_stage.zero_quantized_* values out",
    ),
    Rule(
        lambda c: bool(c.zero_stage.zenflow) or c.offload.super_offload,
        "ZenFlow and super_offload step in threads and processes of their own, which no trace follows",
        "offload=optimizer without them",
    ),
)


def unpredictable(config: Config) -> list[str]:
    """Return the reasons why a configuration is invalid or cannot be predicted; empty when it can be.

    What a command of the user's own needs beside a GPU is seen when its script runs.
    """
    reasons = [*unsupported(config, machine=None), *broken(config, [ON_A_CPU])]
    return reasons if config.is_command else [*reasons, *broken(config, LIMITS), *missing_extras(config, Machine())]
