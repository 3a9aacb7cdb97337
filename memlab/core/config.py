"""Complete configuration of an experiment: its groups, their keys and defaults.

Each group is one dataclass. Its options are the YAML files in ``conf/<name of the field in Config>/``. Keys of
DeepSpeed and transformers keep their names. ``None`` means that other values decide; the docstring under the field says
how.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from memlab.core.schema import LARGEST_WHOLE, MISSING, Range


def one_of(default: Any, *others: Any) -> Any:
    """Declare a field that takes one of the given values. The first is the default."""
    return field(default=default, metadata={"choices": (default, *others)})


def at_least(minimum: int, default: int | None, maximum: int = LARGEST_WHOLE) -> Any:
    """Declare a whole-number field with a lowest and a highest value."""
    return within(Range(minimum, maximum), default)


def within(allowed: Range, default: Any) -> Any:
    """Declare a field that takes a number in this range, or a list of such numbers."""
    return field(default=default, metadata={"range": allowed})


def share(default: float) -> Any:
    """Declare a field that takes numbers from 0 to 1."""
    return within(Range(0.0, 1.0), default)


def not_negative(default: float | None) -> Any:
    return within(Range(0.0), default)


def positive(default: float | None) -> Any:
    return within(Range(0.0, above=True), default)


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

    stage: int = one_of(0, 1, 2, 3)
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
    grad_accum_dtype: str | None = one_of(None, "fp32", "bf16", "fp16")
    """``None``: the same as `dtype`."""
    communication_dtype: str | None = one_of(None, "fp32", "bf16", "fp16")
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


@dataclass
class Training:
    """Whose training runs: memlab's own, or a command of yours."""

    loop: str = one_of("memlab", "command")
    command: str = ""
    """The words of your command, as in a shell. {key} stands for the value of a key (model.path, batch.micro, ...),
    {deepspeed_json} for the DeepSpeed JSON that memlab writes, {run_dir} for a folder of the point's own,
    {master_port} for a free port, {{ for a brace. docs/your_own_command.md has the other places."""
    script: str = ""
    """The script, with words of its own, where the command leaves it to you: {training.script}."""
    words: dict[str, Any] = field(default_factory=dict)
    """Key -> the words that it becomes, or value of the key -> words. They stand at the key's place in the command, or
    at its end. With such words, a value that reaches the command in no way is unsupported."""
    trainer: str = ""
    """Name of the trainer in the names of run folders and in messages."""

    @property
    def name(self) -> str:
        return self.trainer or self.loop

    auto: bool = True
    """Write "auto" into the DeepSpeed JSON for what transformers' arguments say: batch, precision, clipping, and the
    optimizer's hyperparameters. false: write all values, for scripts that call deepspeed.initialize themselves."""


@dataclass
class Hardware:
    """The machine to measure on, or the machine to predict for."""

    device: str = one_of("cuda", "cpu")
    gpu: str = ""
    gpus: int = at_least(1, 1, 1024)
    """GPUs of one node, or ranks of one node if device is cpu."""
    nodes: int = at_least(1, 1, 1024)
    """1: this machine. More: identical nodes, and this machine is one of them."""
    hostfile: str | None = None
    """For several nodes: DeepSpeed's list of the nodes, one '<host> slots=<gpus>' a line."""
    launcher: str | None = field(default=None, metadata={"choices": ("pdsh", "slurm", "openmpi")})
    """For several nodes: the launcher of DeepSpeed that starts the ranks."""
    memory_gib: float | None = within(Range(0.001), None)
    """Memory of one GPU."""
    usd_per_gpu_hour: float | None = not_negative(None)
    """Price of one GPU; the GPUs that are used are paid."""
    bf16_tflops: float | None = positive(None)
    """Dense peak of one GPU, the denominator of model FLOP utilisation. For every shipped GPU, fp16 has the same
    peak."""
    fp32_tflops: float | None = positive(None)
    memory_gb_per_s: float | None = positive(None)
    link_gb_per_s: float | None = positive(None)
    """GPU to GPU, one direction."""
    host_gb_per_s: float | None = positive(None)
    """GPU to host memory, one direction."""

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes."""
        return self.nodes * self.gpus

    @property
    def total_usd_per_hour(self) -> float | None:
        """Price of the GPUs on all nodes in US dollars an hour; ``None`` if the price is not known."""
        return None if self.usd_per_gpu_hour is None else self.world_size * self.usd_per_gpu_hour


@dataclass
class Measure:
    warmup: int = at_least(2, 3, 1_000_000)
    """Steps before the measured ones. The first step is reported separately: it creates the optimizer states, and
    ZeRO-3 does not prefetch in it."""
    steps: int = at_least(1, 10, 1_000_000)
    timeout_s: int = at_least(1, 1800)
    """Wall-clock limit in seconds of the whole run, including start-up."""
    repeats: int = at_least(1, 1, 10_000)
    """How often to measure the whole experiment. Every repeat has its own run folder."""
    repeat: int = at_least(1, 1)
    """Number of this repeat, from 1."""
    protocol: str = one_of("steps", "cold")
    """``steps``: peaks of the training steps; the allocator's cache is emptied before them. ``cold``: peaks from
    process start, as in a plain training: the cache is not emptied before the first step, and each point has its own
    launch."""
    snapshot: bool = False
    """Write torch's memory history, for memlab explain and pytorch.org/memory_viz: until the end of the warm-up steps,
    or up to an out-of-memory."""
    snapshot_ranks: list[int] = field(default_factory=list, metadata={"range": Range(0)})
    """Ranks that write it; empty: all."""
    profile: bool = False
    """After the measured steps, run three more under torch's profiler on rank 0, for memlab explain --time."""


@dataclass
class Predict:
    """Settings of predictions. They do not change what is measured."""

    calibrate: str | None = None
    """A folder of your own measured runs, or a file that ``python -m tools.calibration`` wrote. ``None``: the shipped
    calibration."""
    outside: str | None = None
    """Readings of your own runs, as memlab.analyse.explain.readings writes them: sizes of what lies outside torch's
    allocator. ``None``: the shipped sizes."""


@dataclass
class Sweep:
    """Settings of a sweep as a whole. They do not change what a point measures."""

    isolation: str = one_of("shared", "fresh")
    """``shared``: points that differ only in shape (seq_len, batch) run one after another in one launch."""
    prune: bool = True
    """After a point runs out of memory, record larger points of the same configuration as out of memory without a
    run."""
    side_by_side: str = one_of("auto", "always", "never")
    """Run several launches at once on disjoint GPUs. ``auto``: not with offload, where launches would compete for the
    host."""
    search: str = one_of("none", "batch", "seq_len")
    """Find the largest micro batch (or sequence length) that trains. The search starts from the composed value."""
    search_limit: int | None = at_least(1, None)
    """Largest value that the search tries."""
    dry_run: bool = False
    """Show what would run, and run nothing."""
    guide: str = one_of("none", "quote")
    """``quote``: a dry run also predicts which points fit, and the hours and dollars of the sweep."""
    max_usd: float | None = not_negative(None)
    max_hours: float | None = not_negative(None)


OBJECTIVES = ("usd_per_million_tokens", "step_seconds", "peak_reserved_bytes", "free_bytes")
"""Figures of a record that a sweeper can search by (memlab/analyse/objective.py)."""


@dataclass
class Config:
    """Complete configuration of one experiment: the resolved values of all groups."""

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
    training: Training = field(default_factory=Training)
    hardware: Hardware = field(default_factory=Hardware)
    measure: Measure = field(default_factory=Measure)
    predict: Predict = field(default_factory=Predict)
    sweep: Sweep = field(default_factory=Sweep)
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """Keys of the DeepSpeed JSON that no group sets: deepspeed.steps_per_print=10."""
    training_args: dict[str, Any] = field(default_factory=dict)
    """Fields of transformers' TrainingArguments that no group sets: training_args.torch_empty_cache_steps=4."""
    mode: str = one_of("measure", "predict", "compose")
    seed: int = at_least(0, 0, 2**32 - 1)
    """At most 32 bits: transformers also seeds numpy, which accepts no more."""
    name: str | None = None
    """Name of the folder under outputs/; ``None``: today's date."""
    objective: str | None = field(default=None, metadata={"choices": OBJECTIVES})
    """What another sweeper of Hydra, such as Optuna's, minimises over the points of its sweep (``free_bytes``:
    maximises)."""
    force: bool = False
    """Run again, even if the run folder already holds a finished record of the same experiment."""
    own: dict[str, Any] = field(default_factory=dict)
    """Keys and groups of the user's own. Everywhere else they have their own names, without ``own.``"""

    @property
    def is_command(self) -> bool:
        """Whether a command of the user's own runs, and not memlab's own training."""
        return self.training.loop == "command"


GROUPS = tuple(f.name for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.type))
"""Names of the config groups, in the order of display."""

LIBRARIES = ("deepspeed", "training_args")
"""Keys whose values pass by the groups: to the DeepSpeed JSON, and to TrainingArguments."""

FREE_DICTS = (*LIBRARIES, "model.config", "model.overrides", "zero_stage.zenflow", "zero_stage.leaf_module")
"""Fields whose keys belong to the schema of transformers or DeepSpeed. memlab passes them on as they are."""
