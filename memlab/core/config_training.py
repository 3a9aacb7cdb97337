"""Config groups that say what is trained, and how: from the model to the data.

Each group is one dataclass. Its options are the YAML files in ``conf/<name of the field in Config>/``. Keys of
DeepSpeed and transformers keep their names. ``None`` means that other values decide; the docstring under the field says
how.
"""

from dataclasses import dataclass, field
from typing import Any

from memlab.core.config_fields import MISSING, Range, at_least, not_negative, one_of, share


@dataclass
class Model:
    path: str = MISSING
    """Hub id, or a folder that holds config.json."""
    weights: str = one_of("random", "pretrained")
    """``random`` downloads nothing: memory and speed do not depend on the values of the weights."""
    config: dict[str, Any] = field(default_factory=dict)
    """The Hugging Face configuration of a shipped model; empty: memlab reads the configuration from `path`."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Keys of the Hugging Face configuration to replace, for instance model.overrides.num_hidden_layers=2."""
    trust_remote_code: bool = False


@dataclass
class ZeroStage:
    """Every key of DeepSpeed's ``zero_optimization`` under its own name, with DeepSpeed's own default.

    Source: ``deepspeed/runtime/zero/config.py`` of DeepSpeed 0.19.8. Sizes are numbers of elements, not bytes.
    """

    stage: int = field(default=0, metadata={"choices": (0, 1, 2, 3)})
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = at_least(1, 500_000_000)
    use_multi_rank_bucket_allreduce: bool = True
    allgather_partitions: bool = True
    allgather_bucket_size: int = at_least(0, 500_000_000)
    overlap_comm: bool | None = None
    """``None``: true at stage 3, false below."""
    compute_grad_norm: bool = True
    load_from_fp32_weights: bool = True
    elastic_checkpoint: bool = False
    sub_group_size: int = at_least(1, 1_000_000_000)
    stage3_prefetch_bucket_size: int = at_least(0, 50_000_000)
    stage3_param_persistence_threshold: int = at_least(0, 100_000)
    stage3_model_persistence_threshold: int = at_least(0, 9_223_372_036_854_775_807)
    stage3_max_live_parameters: int = at_least(0, 1_000_000_000)
    stage3_max_reuse_distance: int = at_least(0, 1_000_000_000)
    stage3_gather_16bit_weights_on_model_save: bool = False
    stage3_module_granularity_threshold: int = at_least(0, 0)
    stage3_use_all_reduce_for_fetch_params: bool = False
    stage3_allgather_sequential: bool = False
    ignore_unused_parameters: bool = True
    legacy_stage1: bool = False
    round_robin_gradients: bool = False
    parameter_alignment: bool = False
    zero_hpz_partition_size: int = at_least(1, 1)
    zero_quantized_weights: bool = False
    zero_quantized_nontrainable_weights: bool = False
    zero_quantized_gradients: bool = False
    memory_efficient_linear: bool = True
    pipeline_loading_checkpoint: bool = False
    override_module_apply: bool = True
    log_trace_cache_warnings: bool = False
    enable_sanity_checks: bool = False
    save_muon_momentum_buffer_in_memory: bool = False
    zenflow: dict[str, Any] = field(default_factory=dict)
    leaf_module: dict[str, Any] = field(default_factory=dict)


@dataclass
class Offload:
    """Places of optimizer states and parameters between uses (``offload_optimizer``, ``offload_param``)."""

    optimizer: str = one_of("none", "cpu", "nvme")
    param: str = one_of("none", "cpu", "nvme")
    nvme_path: str | None = None
    pin_memory: bool = True
    ratio: float = share(1.0)
    """Share of the optimizer states to offload (stage 3 only)."""
    fast_init: bool = False
    pipeline_read: bool = False
    pipeline_write: bool = False
    super_offload: bool = False
    cpuadam_cores_perc: float = share(0.8)
    optimizer_buffer_count: int = at_least(0, 4)
    param_buffer_count: int = at_least(0, 5)
    param_buffer_size: int = at_least(0, 100_000_000)
    max_in_cpu: int = at_least(0, 1_000_000_000)


@dataclass
class Allocator:
    conf: str = MISSING
    """The value of PYTORCH_CUDA_ALLOC_CONF; empty: PyTorch's defaults."""


@dataclass
class Checkpointing:
    """Gradient (activation) checkpointing of the transformer blocks, as transformers does it."""

    enabled: bool = False
    reentrant: bool = False
    # The keys of DeepSpeed's `activation_checkpointing`. They only configure deepspeed.checkpointing, which no Hugging
    # Face model calls. They are in the schema so that memlab/rules/ can refuse them and say why.
    partition_activations: bool = False
    cpu_checkpointing: bool = False
    contiguous_memory_optimization: bool = False
    number_checkpoints: int | None = at_least(1, None)
    synchronize_checkpoint_boundary: bool = False
    profile: bool = False


@dataclass
class SeqLen:
    tokens: int = at_least(1, 512, 2**31 - 1)


@dataclass
class Batch:
    micro: int = at_least(1, 1, 2**31 - 1)
    """Samples per GPU per forward."""
    accumulation: int = at_least(1, 1, 1_000_000)
    """Forward and backward passes per optimizer step."""


@dataclass
class Precision:
    dtype: str = one_of("bf16", "fp16", "fp32")
    grad_accum_dtype: str | None = field(default=None, metadata={"choices": (None, "fp32", "bf16", "fp16")})
    """``None``: the same as `dtype`."""
    communication_dtype: str | None = field(default=None, metadata={"choices": (None, "fp32", "bf16", "fp16")})
    """``None``: the same as `dtype`."""
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False
    immediate_grad_update: bool = False
    loss_scale: float = not_negative(0.0)
    """For fp16 only. 0: dynamic, from 2 ** initial_scale_power."""
    initial_scale_power: int = at_least(0, 16, 127)


@dataclass
class Attention:
    implementation: str = one_of("sdpa", "eager", "flash_attention_2", "flash_attention_3")


@dataclass
class Optimizer:
    source: str = one_of("deepspeed", "transformers")
    """``deepspeed``: the block ``optimizer`` of the JSON (FusedAdam, or CPUAdam with offload). ``transformers``:
    Trainer's ``optim``."""
    name: str = "AdamW"
    lr: float = not_negative(1e-5)
    betas: list[float] = field(
        default_factory=lambda: [0.9, 0.999], metadata={"length": 2, "range": Range(0.0, 1.0, below=True)}
    )
    eps: float = not_negative(1e-8)
    weight_decay: float = not_negative(0.0)
    gradient_clipping: float = not_negative(1.0)
    """Largest norm of the gradients; 0: no clipping."""


@dataclass
class Adapter:
    """Low-rank adapters (peft's LoRA) beside frozen weights, which qlora keeps in 4 bits (bitsandbytes).

    The defaults of rank, alpha and dropout are those of TRL's ``ModelConfig``.
    """

    method: str = one_of("none", "lora", "qlora")
    rank: int = at_least(1, 16)
    alpha: int = at_least(1, 32)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = share(0.05)
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])
    """Names of linear layers, for instance [q_proj,v_proj]. all-linear: every linear layer except the output layer."""
    # The fields below are for qlora only.
    quant_type: str = one_of("nf4", "fp4")
    double_quant: bool = True
    """Also quantise the scales of the 4-bit blocks."""
    quant_storage: str = one_of("uint8", "bf16", "fp16", "fp32")
    """The dtype of the tensors that hold the packed 4-bit weights."""


@dataclass
class Kernels:
    implementation: str = one_of("none", "liger")
    """``liger``: Triton kernels of liger-kernel replace transformers' layers (Trainer's use_liger_kernel)."""


@dataclass
class Data:
    source: str = one_of("random", "sample", "guanaco", "jsonl")
    """``random``: uniformly drawn tokens, seq_len.tokens of them. The other sources are tokenised, then padded or
    truncated."""
    path: str | None = None
    """The file, for jsonl."""
    split: str = "train"
    text_field: str = "text"
    tokenizer: str | None = None
    """``None``: the model's own tokenizer; for `sample`, the small tokenizer that ships with the data."""
