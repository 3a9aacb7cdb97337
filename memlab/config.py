"""The typed schema of every config group: what may be set, of which type, and which values it takes.

A group is one dataclass; its options are the YAML files of the folder in ``conf/`` that has the field's name. Keys that
are DeepSpeed's or transformers' own keep their own names. ``None`` means "decided by what the other groups say" and the
comment under the field says how.
"""

import dataclasses
import math
import sys
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from memlab import allocator_conf, optimizers
from memlab.errors import ConfigError, nearest
from memlab.ranges import LARGEST_WHOLE, NOT_NEGATIVE, POSITIVE, SHARE, Range
from memlab.schema import Check, SchemaError, check_field, shown

MISSING = "???"  # OmegaConf's mark for a value that must be given


def one_of(default: str, *others: str) -> Any:
    """A text field that takes one of the given values; the first is its default."""
    return field(default=default, metadata={"choices": (default, *others)})


def at_least(minimum: int, default: int | None, maximum: int = LARGEST_WHOLE) -> Any:
    """A whole-number field with a lowest and a highest value."""
    return within(Range(minimum, maximum), default)


def within(allowed: Range, default: Any) -> Any:
    """A field of numbers of this range; of a list, each of them."""
    return field(default=default, metadata={"range": allowed})


def share(default: float) -> Any:
    """A field that takes numbers from 0 to 1."""
    return within(SHARE, default)


def not_negative(default: float | None) -> Any:
    return within(NOT_NEGATIVE, default)


def positive(default: float | None) -> Any:
    return within(POSITIVE, default)


@dataclass
class Model:
    path: str = MISSING
    # Hub id, or a folder that holds config.json.
    weights: str = one_of("random", "pretrained")
    # Memory and speed do not depend on the values, so nothing is downloaded by default.
    config: dict[str, Any] = field(default_factory=dict)
    # The Hugging Face configuration of a shipped entry; empty: it is read from `path`.
    overrides: dict[str, Any] = field(default_factory=dict)
    # Keys of the Hugging Face configuration to replace, for instance model.overrides.num_hidden_layers=2.
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
    # None: true at stage 3, false below.
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
    """Where optimizer states and parameters live between uses (``offload_optimizer``, ``offload_param``)."""

    optimizer: str = one_of("none", "cpu", "nvme")
    param: str = one_of("none", "cpu", "nvme")
    nvme_path: str | None = None
    pin_memory: bool = True
    ratio: float = share(1.0)
    # Share of the optimizer states that is offloaded (stage 3 only).
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
    # The raw value of PYTORCH_CUDA_ALLOC_CONF; empty: PyTorch's own defaults.


@dataclass
class Checkpointing:
    """Gradient (activation) checkpointing of the transformer blocks, as transformers does it."""

    enabled: bool = False
    reentrant: bool = False
    # The keys of DeepSpeed's `activation_checkpointing`. They only configure deepspeed.checkpointing, which no Hugging
    # Face model calls, so rules.py refuses them; they are listed so that the refusal can say why.
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
    # Samples per GPU per forward.
    accumulation: int = at_least(1, 1, 1_000_000)
    # Forward and backward passes per optimizer step.


@dataclass
class Precision:
    dtype: str = one_of("bf16", "fp16", "fp32")
    grad_accum_dtype: str | None = field(default=None, metadata={"choices": (None, "fp32", "bf16", "fp16")})
    # None: dtype.
    communication_dtype: str | None = field(default=None, metadata={"choices": (None, "fp32", "bf16", "fp16")})
    # None: dtype.
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False
    immediate_grad_update: bool = False
    loss_scale: float = not_negative(0.0)
    # fp16 only. 0: dynamic, from 2 ** initial_scale_power.
    initial_scale_power: int = at_least(0, 16, 127)


@dataclass
class Attention:
    implementation: str = one_of("sdpa", "eager", "flash_attention_2", "flash_attention_3")


@dataclass
class Optimizer:
    source: str = one_of("deepspeed", "transformers")
    # deepspeed: the JSON's `optimizer` block (FusedAdam, or CPUAdam when offloaded); transformers: Trainer's `optim`.
    name: str = "AdamW"
    lr: float = not_negative(1e-5)
    betas: list[float] = field(
        default_factory=lambda: [0.9, 0.999], metadata={"length": 2, "range": Range(0.0, 1.0, below=True)}
    )
    eps: float = not_negative(1e-8)
    weight_decay: float = not_negative(0.0)
    gradient_clipping: float = not_negative(1.0)
    # 0: none.


@dataclass
class Adapter:
    """Low-rank adapters (peft's LoRA) beside frozen weights, and whether those are kept in 4 bits (bitsandbytes).

    Rank, alpha and dropout are the defaults of TRL's ``ModelConfig``, what people fine-tune with.
    """

    method: str = one_of("none", "lora", "qlora")
    rank: int = at_least(1, 16)
    alpha: int = at_least(1, 32)
    # The adapter's output is scaled by alpha / rank.
    dropout: float = share(0.05)
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])
    # Names of linear layers, for instance [q_proj,v_proj]. all-linear: every one but the output layer.
    # qlora only:
    quant_type: str = one_of("nf4", "fp4")
    double_quant: bool = True
    # Quantise the scales of the 4-bit blocks, too.
    quant_storage: str = one_of("uint8", "bf16", "fp16", "fp32")
    # The dtype that packed weights are kept as.


@dataclass
class Kernels:
    implementation: str = one_of("none", "liger")
    # liger: Trainer's use_liger_kernel, the Triton kernels of liger-kernel in place of transformers' own layers.


@dataclass
class Data:
    source: str = one_of("random", "sample", "guanaco", "jsonl")
    # random: tokens drawn uniformly, of the exact length; the others are tokenised, then padded or truncated to it.
    path: str | None = None
    # jsonl: the file.
    split: str = "train"
    text_field: str = "text"
    tokenizer: str | None = None
    # None: the model's own; for `sample`, the small tokenizer that ships beside it.


@dataclass
class Hardware:
    """The machine that is measured, or the one that is predicted for."""

    device: str = one_of("cuda", "cpu")
    gpu: str = ""
    gpus: int = at_least(1, 1, 1024)
    # GPUs (on a CPU: ranks) of one node.
    nodes: int = at_least(1, 1, 1024)
    # 1: this machine. More: all alike, and this machine is one of them.
    hostfile: str | None = None
    # Several nodes: DeepSpeed's list of them, '<host> slots=<gpus>' a line.
    launcher: str | None = field(default=None, metadata={"choices": ("pdsh", "slurm", "openmpi")})
    # Several nodes: which of DeepSpeed's launchers starts the ranks on them.
    memory_gib: float | None = positive(None)
    # Of one GPU.
    usd_per_hour: float | None = not_negative(None)
    # Of one node.
    bf16_tflops: float | None = positive(None)
    # Dense peak of one GPU; the denominator of model FLOP utilisation. fp16 is the same on every GPU listed.
    fp32_tflops: float | None = positive(None)
    memory_gb_per_s: float | None = positive(None)
    link_gb_per_s: float | None = positive(None)
    # GPU to GPU, one direction.
    host_gb_per_s: float | None = positive(None)
    # GPU to host memory, one direction.

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.nodes * self.gpus

    @property
    def total_usd_per_hour(self) -> float | None:
        """Of all nodes; ``None`` where the price is not known."""
        return None if self.usd_per_hour is None else self.nodes * self.usd_per_hour


@dataclass
class Measure:
    warmup: int = at_least(2, 3, 1_000_000)
    # Steps that are not timed. The first is reported apart: optimizer states are created and ZeRO-3 does not prefetch.
    steps: int = at_least(1, 10, 1_000_000)
    timeout_s: int = at_least(1, 1800)
    # Wall clock of the whole run, start-up included.
    repeats: int = at_least(1, 1, 10_000)
    # How often the whole experiment is measured; every repeat is a run folder of its own.
    repeat: int = at_least(1, 1)
    # Which of the repeats this one is.
    protocol: str = one_of("steps", "cold")
    # steps: peaks of the training steps, which begin with an emptied cache. cold: peaks from process start, as a plain
    # training has them, with nothing given back before its first step; each point has a launch of its own.
    snapshot: bool = False
    # Write torch's memory history of the warm-up steps, or up to an out-of-memory in them, for pytorch.org/memory_viz.


@dataclass
class Predict:
    """How a prediction is made. Nothing here changes what is measured."""

    calibrate: str | None = None
    # Your own measured runs (a folder), or a file that memlab.predict.calibrate wrote; None: what ships with memlab.


@dataclass
class Sweep:
    """How a multirun is carried out. Nothing here changes what a point measures."""

    isolation: str = one_of("shared", "fresh")
    # shared: points that differ in shape alone (seq_len, batch) run one after another in one launch.
    prune: bool = True
    # Once a point is out of memory, larger ones of the same configuration are recorded as such without running.
    side_by_side: str = one_of("auto", "always", "never")
    # Several launches at once on disjoint GPUs; auto: unless they would compete for the host (offload).
    search: str = one_of("none", "batch", "seq_len")
    # Find the largest micro batch (or sequence length) that trains, from the composed one upwards.
    search_limit: int | None = at_least(1, None)
    # Where the search ends at the latest.
    dry_run: bool = False
    # Show what would run, and start nothing.
    max_usd: float | None = not_negative(None)
    max_hours: float | None = not_negative(None)


@dataclass
class Config:
    """One experiment, completely: the resolved values of all groups."""

    model: Model = field(default_factory=Model)
    zero_stage: ZeroStage = field(default_factory=ZeroStage)
    offload: Offload = field(default_factory=Offload)
    allocator: Allocator = field(default_factory=Allocator)
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    seq_len: SeqLen = field(default_factory=SeqLen)
    batch: Batch = field(default_factory=Batch)
    precision: Precision = field(default_factory=Precision)
    attention: Attention = field(default_factory=Attention)
    optimizer: Optimizer = field(default_factory=Optimizer)
    adapter: Adapter = field(default_factory=Adapter)
    kernels: Kernels = field(default_factory=Kernels)
    data: Data = field(default_factory=Data)
    hardware: Hardware = field(default_factory=Hardware)
    measure: Measure = field(default_factory=Measure)
    predict: Predict = field(default_factory=Predict)
    sweep: Sweep = field(default_factory=Sweep)
    mode: str = one_of("measure", "predict")
    seed: int = at_least(0, 0, 2**32 - 1)
    # As numpy takes it, which transformers seeds, too.
    name: str | None = None
    # The folder under outputs/; None: today's date.
    force: bool = False
    # Run again although the run folder already holds a finished record of the same experiment.


GROUPS = tuple(f.name for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.type))
"""The config groups, in the order in which they are shown."""

FREE_DICTS = ("model.config", "model.overrides", "zero_stage.zenflow", "zero_stage.leaf_module")
"""Fields whose keys belong to somebody else's schema and are passed on as they are."""


_DEFAULTS = {name: dataclasses.asdict(value) for name, value in vars(Config()).items() if name in GROUPS}
_OWN_DEFAULTS = {name: value for name, value in vars(Config()).items() if name not in GROUPS}


def completed(values: dict[str, Any]) -> dict[str, Any]:
    """A checked configuration with the defaults of the keys that were added to the schema after it was written."""
    return _OWN_DEFAULTS | values | {group: known | values.get(group, {}) for group, known in _DEFAULTS.items()}


def from_dict(values: dict[str, Any], prefix: str = "") -> Config:
    """The typed configuration of a resolved dictionary. Raises :class:`ConfigError` for whatever the schema refuses.

    ``prefix`` comes before the keys that an error names: where the dictionary was found.
    """
    config = _build(Config, values, prefix)
    _check_optimizer(config.optimizer)
    _check_adapter(config.adapter)
    _check_allocator(config.allocator)
    _check_folder("name", config.name)
    return config


def to_dict(config: Config) -> dict[str, Any]:
    """The plain dictionary of a configuration; the inverse of :func:`from_dict`."""
    return dataclasses.asdict(config)


def _check_optimizer(optimizer: Optimizer) -> None:
    names = optimizers.NAMES[optimizer.source]
    is_deepspeed = optimizer.source == "deepspeed"
    name = optimizer.name.lower() if is_deepspeed else optimizer.name
    if name not in names:
        where = "DeepSpeed's own" if is_deepspeed else "transformers'"
        raise ConfigError(f"'optimizer.name' is none of {where} optimizers: '{optimizer.name}'. {nearest(name, names)}")


def _check_adapter(adapter: Adapter) -> None:
    targets = adapter.target_modules
    if not targets or ("all-linear" in targets and len(targets) > 1):
        raise ConfigError(
            f"'adapter.target_modules' is [all-linear], or a list of names of linear layers, not {targets!r}."
        )


def _check_allocator(allocator: Allocator) -> None:
    if allocator.conf != MISSING:
        allocator_conf.read(allocator.conf)


def _check_folder(key: str, name: str | None) -> None:
    """A name becomes a folder under outputs/, and must not lead out of it."""
    parts = [] if name is None else name.split("/")
    if {"", ".", ".."} & set(parts):
        raise ConfigError(f"'{key}' names a folder under outputs/ and cannot lead elsewhere, as '{name}' does.")


def _build(schema: type, values: dict[str, Any], path: str) -> Any:
    keys = _keys(schema)
    for key in values:
        if key not in keys:
            raise ConfigError(f"Unknown key '{path}{key}'. {nearest(key, keys)}")
    built = {}
    for name, value in values.items():
        key, annotation, check = path + name, *keys[name]
        if check is None:
            if not isinstance(value, dict):
                raise ConfigError(f"'{key}' is a config group with keys of its own, not the value {shown(value)}.")
            built[name] = _build(annotation, value, f"{key}.")
        else:
            built[name] = _checked(key, value, annotation, check)
    return schema(**built)


@cache
def _keys(schema: type) -> dict[str, tuple[Any, Check | None]]:
    """Key -> type and check; a group has no check of its own."""
    return {
        spec.name: (spec.type, None if dataclasses.is_dataclass(spec.type) else check_field(spec))
        for spec in dataclasses.fields(schema)
    }


def _checked(key: str, value: Any, annotation: Any, check: Check) -> Any:
    if value == MISSING:
        raise ConfigError(f"'{key}' has no value: add {key}=<value> to the command line.")
    if type(value) is int and annotation in (float, float | None):
        value = float(value) if abs(value) <= sys.float_info.max else math.inf
    try:
        check(value)
    except SchemaError as error:
        raise ConfigError(str(error.within(key))) from None
    return value
