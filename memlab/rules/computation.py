"""Rules of how a step computes: checkpointing, precision, attention and the allocator."""

from memlab.core.deepspeed_json import OF_DTYPE
from memlab.rules.rule import Rule, changed, has_changed

RULES = (
    # --- checkpointing
    Rule(
        lambda c: changed(c.checkpointing, but=("enabled", "reentrant")),
        "DeepSpeed's activation_checkpointing keys configure deepspeed.checkpointing, which transformers never calls",
        "checkpointing=full, and for reentrant checkpoints checkpointing.reentrant=true",
    ),
    Rule(
        lambda c: c.checkpointing.reentrant and not c.checkpointing.enabled,
        "checkpointing.reentrant has no effect without checkpointing",
        "checkpointing=full",
    ),
    # --- precision
    Rule(
        lambda c: c.precision.dtype == "fp16" and c.hardware.device == "cpu",
        "DeepSpeed does not train in fp16 on a CPU",
        "precision=bf16",
    ),
    Rule(
        lambda c: c.precision.dtype != "bf16" and has_changed(c.precision, *OF_DTYPE["bf16"]),
        "the bf16_* values and immediate_grad_update belong to bf16 training",
        "precision=bf16",
    ),
    Rule(
        lambda c: c.precision.dtype != "fp16" and has_changed(c.precision, *OF_DTYPE["fp16"]),
        "only fp16 training scales its loss",
        "precision=fp16, or leave the loss scale out",
    ),
    Rule(
        lambda c: c.precision.bf16_optimizer_states and not c.precision.bf16_master_weights_and_grads,
        "DeepSpeed keeps optimizer states in bf16 only with bf16 master weights",
        "precision.bf16_master_weights_and_grads=true",
    ),
    Rule(
        lambda c: c.precision.bf16_master_weights_and_grads and c.zero_stage.stage == 0,
        "DeepSpeed's bf16 master weights belong to its ZeRO optimizers",
        "zero_stage=zero1 or higher",
    ),
    Rule(
        lambda c: (
            c.precision.bf16_master_weights_and_grads
            and not c.precision.bf16_optimizer_states
            and c.offload.optimizer == "none"
        ),
        "bf16 master weights with fp32 optimizer states exist with DeepSpeed's CPU Adam only",
        "precision.bf16_optimizer_states=true, or offload=optimizer",
    ),
    Rule(
        lambda c: c.zero_stage.stage == 0 and c.precision.grad_accum_dtype not in (None, c.precision.dtype),
        "without ZeRO, DeepSpeed accumulates gradients in the model's own precision only",
        "zero_stage=zero1 or higher, or leave precision.grad_accum_dtype out",
    ),
    # --- attention
    Rule(
        lambda c: c.attention.implementation.startswith("flash") and c.hardware.device == "cpu",
        "flash attention runs on GPUs only",
        "attention=sdpa",
    ),
    Rule(
        lambda c: c.attention.implementation.startswith("flash") and c.precision.dtype == "fp32",
        "flash attention computes in bf16 or fp16 only",
        "precision=bf16, or attention=sdpa",
    ),
    # --- allocator
    Rule(
        lambda c: c.allocator.conf != "" and c.hardware.device == "cpu",
        "there is no CUDA caching allocator on a CPU",
        "allocator=default",
    ),
)
