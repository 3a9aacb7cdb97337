"""Rules of optimizers, of DeepSpeed's and of transformers'."""

from memlab.core.config import Config
from memlab.core.optimizers import FUSED_WITH_BACKWARD, LOW_RANK, OTHER_DEVICES, package_of, taken
from memlab.rules.rule import Rule, has_changed


def optimizer_package(config: Config) -> str | None:
    """Return the Python package that the optimizer comes from; ``None`` if it is DeepSpeed's or torch's own."""
    return package_of(config.optimizer.source, config.optimizer.name)


def _optimizer_is(config: Config, source: str, *names: str) -> bool:
    name = config.optimizer.name.lower() if source == "deepspeed" else config.optimizer.name
    return config.optimizer.source == source and name in names


RULES = (
    Rule(
        lambda c: optimizer_package(c) in ("bitsandbytes", "torchao", "optimi") and c.hardware.device == "cpu",
        "the optimizers of bitsandbytes, torchao and torch-optimi can be measured on GPUs only",
        "optimizer=adamw_torch",
    ),
    Rule(
        lambda c: optimizer_package(c) in ("bitsandbytes", "optimi") and c.offload.optimizer != "none",
        "the optimizers of bitsandbytes and torch-optimi step on the GPU, and offloaded gradients are on the host",
        "optimizer=adamw, or offload=none",
    ),
    Rule(
        lambda c: _optimizer_is(c, "transformers", *OTHER_DEVICES),
        "this optimizer is for TPUs or Ascend NPUs",
        "optimizer=adamw_torch",
    ),
    Rule(
        lambda c: _optimizer_is(c, "transformers", *LOW_RANK),
        "GaLore and APOLLO project the gradients of whole matrices, and DeepSpeed gives its optimizers flat shards",
        "optimizer=adafactor, or adapter=lora",
    ),
    Rule(
        lambda c: _optimizer_is(c, "transformers", *FUSED_WITH_BACKWARD),
        "LOMO updates the weights in a backward pass of its own, and under DeepSpeed the engine's own runs",
        "optimizer=sgd, or optimizer=adafactor",
    ),
    Rule(
        lambda c: optimizer_package(c) == "schedulefree" and c.zero_stage.stage == 0,
        "schedule-free optimizers must know when training begins, and without ZeRO DeepSpeed does not pass that on",
        "zero_stage=zero1 or higher, or optimizer=adamw_torch",
    ),
    Rule(
        lambda c: _optimizer_is(c, "transformers", "adagrad") and c.zero_stage.stage > 0,
        "transformers gives Adagrad two parameter groups, and DeepSpeed's ZeRO makes it again with one",
        "optimizer.source=deepspeed optimizer.name=adagrad",
    ),
    Rule(
        lambda c: c.optimizer.name.lower() == "adagrad" and c.zero_stage.stage == 0 and c.precision.dtype != "fp32",
        "Adagrad makes its states when it is built, and DeepSpeed then gives it fp32 weights that have none",
        "optimizer.source=deepspeed optimizer.name=adagrad zero_stage=zero1, or precision=fp32",
    ),
    Rule(
        lambda c: _optimizer_is(c, "deepspeed", "muadam", "muadamw", "musgd"),
        "mup's optimizers need the base shapes of a mup model, which no model of transformers has",
        "optimizer=adamw",
    ),
    Rule(
        lambda c: _optimizer_is(c, "deepspeed", "lamb") and c.zero_stage.stage > 0,
        "LAMB scales the update of each whole tensor, so DeepSpeed does not run it on ZeRO's shards",
        "zero_stage=zero0, or optimizer=adamw",
    ),
    Rule(
        lambda c: _optimizer_is(c, "deepspeed", "lamb") and c.hardware.device == "cpu",
        "DeepSpeed's LAMB is a CUDA kernel",
        "optimizer=adamw",
    ),
    Rule(
        lambda c: (
            _optimizer_is(c, "deepspeed", "lion") and c.hardware.device == "cpu" and c.offload.optimizer == "none"
        ),
        "DeepSpeed's Lion is a CUDA kernel, and a CPU kernel where it is offloaded",
        "offload=optimizer, or optimizer=adamw",
    ),
    Rule(
        lambda c: _optimizer_is(c, "deepspeed", "muon") and c.zero_stage.stage == 3 and c.zero_stage.reduce_scatter,
        "DeepSpeed's Muon needs whole gradients, which ZeRO stage 3 has only without reduce-scatter",
        "zero_stage.reduce_scatter=false, or zero_stage=zero2",
    ),
    Rule(
        lambda c: has_changed(c.optimizer, *({"betas", "eps"} - set(taken(c.optimizer.source, c.optimizer.name)))),
        "this optimizer takes no optimizer.eps (Lion), no optimizer.betas (Adagrad) or neither (SGD, Adafactor)",
        "leave it out",
    ),
)
