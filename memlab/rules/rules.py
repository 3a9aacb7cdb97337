"""Rules for unsupported combinations of options: when a rule matches, why, and what to use instead.

DeepSpeed and transformers accept most of these combinations silently and then train something other than the options
say. A run that matches a rule gets the status ``unsupported`` within milliseconds and is not started.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from memlab.core.config import Adapter, Checkpointing, Config, Offload, Optimizer, Precision, ZeroStage
from memlab.core.errors import ConfigError
from memlab.core.optimizers import DEEPSPEED, FUSED_WITH_BACKWARD, LOW_RANK, OTHER_DEVICES, PYPI, package_of
from memlab.core.plan import applies
from memlab.system.hostfile import read_hostfile
from memlab.system.machine import Machine


@dataclass(frozen=True)
class Rule:
    when: Callable[[Config], bool]
    why: str
    instead: str


RULES = (
    # --- offload
    Rule(
        lambda c: c.offload.param != "none" and c.zero_stage.stage < 3,
        "only ZeRO stage 3 partitions parameters, and so can offload them; DeepSpeed ignores offload_param below it",
        "zero_stage=zero3, or offload=optimizer",
    ),
    Rule(
        lambda c: c.offload.optimizer != "none" and c.zero_stage.stage == 0,
        "there is no optimizer offload at ZeRO stage 0",
        "zero_stage=zero1 or higher, or offload=none",
    ),
    Rule(
        lambda c: "nvme" in (c.offload.optimizer, c.offload.param) and c.zero_stage.stage < 3,
        "NVMe offload exists at ZeRO stage 3 only",
        "zero_stage=zero3, or offload=optimizer",
    ),
    Rule(
        lambda c: "nvme" in (c.offload.optimizer, c.offload.param) and not c.offload.nvme_path,
        "NVMe offload needs a folder on the NVMe device",
        "offload.nvme_path=<folder>",
    ),
    Rule(
        lambda c: c.offload.ratio != 1.0 and (c.zero_stage.stage < 3 or c.offload.optimizer != "cpu"),
        "a partial optimizer offload (offload.ratio) exists at ZeRO stage 3 with offload to the CPU only",
        "zero_stage=zero3 offload=optimizer, or offload.ratio=1.0",
    ),
    Rule(
        lambda c: c.offload.super_offload and (c.zero_stage.stage < 3 or c.offload.optimizer != "cpu"),
        "super_offload exists at ZeRO stage 3 with optimizer offload to the CPU only",
        "zero_stage=zero3 offload=optimizer, or offload.super_offload=false",
    ),
    Rule(
        lambda c: (
            (c.offload.optimizer, c.offload.param) == ("none", "none")
            and bool(_changed(c.offload, Offload(), but=("ratio", "super_offload")))
        ),
        "nothing is offloaded, so the other offload.* values have no effect",
        "offload=optimizer, or leave the other offload.* values out",
    ),
    Rule(
        lambda c: c.offload.nvme_path is not None and _is_offloaded(c) and not _is_offloaded(c, "nvme"),
        "nothing is offloaded to NVMe, so offload.nvme_path has no effect",
        "offload=optimizer_nvme or offload=all_nvme, or leave offload.nvme_path out",
    ),
    # Keys that only DeepSpeed's swap_tensor/ reads, which is for NVMe (DeepSpeed 0.19.8, runtime/zero/stage3.py).
    Rule(
        lambda c: (
            _is_offloaded(c)
            and c.offload.optimizer != "nvme"
            and _differ(c.offload, "pipeline_read", "pipeline_write", "optimizer_buffer_count")
        ),
        "pipeline_read, pipeline_write and optimizer_buffer_count belong to an optimizer on NVMe",
        "offload=optimizer_nvme, or leave them out",
    ),
    Rule(
        lambda c: (
            _is_offloaded(c)
            and c.offload.param != "nvme"
            and _differ(c.offload, "param_buffer_count", "param_buffer_size", "max_in_cpu")
        ),
        "param_buffer_count, param_buffer_size and max_in_cpu belong to parameters on NVMe",
        "offload=all_nvme, or leave them out",
    ),
    Rule(
        lambda c: _is_offloaded(c) and c.offload.fast_init and (c.offload.optimizer, c.offload.param) != ("nvme",) * 2,
        "offload.fast_init reads the optimizer's master weights from parameters on NVMe, so both must be there",
        "offload=all_nvme, or offload.fast_init=false",
    ),
    Rule(
        lambda c: _is_offloaded(c) and not c.offload.super_offload and _differ(c.offload, "cpuadam_cores_perc"),
        "offload.cpuadam_cores_perc belongs to super_offload",
        "offload.super_offload=true, or leave offload.cpuadam_cores_perc out",
    ),
    Rule(
        lambda c: bool(c.zero_stage.zenflow) and c.offload.optimizer != "cpu",
        "ZenFlow overlaps an optimizer that is offloaded to the CPU",
        "offload=optimizer, or leave zero_stage.zenflow out",
    ),
    # --- checkpointing
    Rule(
        lambda c: bool(_changed(c.checkpointing, Checkpointing(), but=("enabled", "reentrant"))),
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
        lambda c: (
            c.precision.dtype != "bf16"
            and bool(
                c.precision.bf16_master_weights_and_grads
                or c.precision.bf16_optimizer_states
                or c.precision.immediate_grad_update
            )
        ),
        "the bf16_* values and immediate_grad_update belong to bf16 training",
        "precision=bf16",
    ),
    Rule(
        lambda c: (
            c.precision.dtype != "fp16"
            and (c.precision.loss_scale, c.precision.initial_scale_power)
            != (Precision().loss_scale, Precision().initial_scale_power)
        ),
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
    # --- adapter, kernels
    Rule(
        lambda c: c.adapter.method == "none" and bool(_changed(c.adapter, Adapter(), but=("method",))),
        "all weights are trained, so the other adapter.* values have no effect",
        "adapter=lora or adapter=qlora, or leave the other adapter.* values out",
    ),
    Rule(
        lambda c: (
            c.adapter.method == "lora"
            and bool(set(_changed(c.adapter, Adapter())) & {"quant_type", "double_quant", "quant_storage"})
        ),
        "adapter.quant_type, adapter.double_quant and adapter.quant_storage belong to weights in 4 bits",
        "adapter=qlora, or leave them out",
    ),
    Rule(
        lambda c: c.kernels.implementation == "liger" and c.hardware.device == "cpu",
        "liger-kernel's Triton kernels run on GPUs only",
        "kernels=none",
    ),
    Rule(
        lambda c: c.kernels.implementation == "liger" and _model_type(c) not in (None, *LIGER_FAMILIES),
        "liger-kernel has no kernels for this model's family and would leave it as it is",
        "kernels=none, or a model of another family (llama, mistral, qwen2, qwen3, gemma2, phi3, ...)",
    ),
    # --- allocator, optimizer, data, model
    Rule(
        lambda c: c.allocator.conf != "" and c.hardware.device == "cpu",
        "there is no CUDA caching allocator on a CPU",
        "allocator=default",
    ),
    Rule(
        lambda c: _optimizer_package(c) in ("bitsandbytes", "torchao", "optimi") and c.hardware.device == "cpu",
        "the optimizers of bitsandbytes, torchao and torch-optimi can be measured on GPUs only",
        "optimizer=adamw_torch",
    ),
    Rule(
        lambda c: _optimizer_package(c) in ("bitsandbytes", "optimi") and c.offload.optimizer != "none",
        "the optimizers of bitsandbytes and torch-optimi step on the GPU, and offloaded gradients are on the host",
        "optimizer=adamw, or offload=none",
    ),
    Rule(
        lambda c: _optimizer_is(c, "transformers", OTHER_DEVICES),
        "this optimizer is for TPUs or Ascend NPUs",
        "optimizer=adamw_torch",
    ),
    Rule(
        lambda c: _optimizer_is(c, "transformers", LOW_RANK),
        "GaLore and APOLLO project the gradients of whole matrices, and DeepSpeed gives its optimizers flat shards",
        "optimizer=adafactor, or adapter=lora",
    ),
    Rule(
        lambda c: _optimizer_is(c, "transformers", FUSED_WITH_BACKWARD),
        "LOMO updates the weights in a backward pass of its own, and under DeepSpeed the engine's own runs",
        "optimizer=sgd, or optimizer=adafactor",
    ),
    Rule(
        lambda c: _optimizer_package(c) == "schedulefree" and c.zero_stage.stage == 0,
        "schedule-free optimizers must be told when training begins, and without ZeRO DeepSpeed does not pass that on",
        "zero_stage=zero1 or higher, or optimizer=adamw_torch",
    ),
    Rule(
        lambda c: _optimizer_is(c, "transformers", ("adagrad",)) and c.zero_stage.stage > 0,
        "transformers gives Adagrad two parameter groups, and DeepSpeed's ZeRO makes it anew with one",
        "optimizer.source=deepspeed optimizer.name=adagrad",
    ),
    Rule(
        lambda c: c.optimizer.name.lower() == "adagrad" and c.zero_stage.stage == 0 and c.precision.dtype != "fp32",
        "Adagrad makes its states when it is built, and DeepSpeed then gives it fp32 weights that have none",
        "optimizer.source=deepspeed optimizer.name=adagrad zero_stage=zero1, or precision=fp32",
    ),
    Rule(
        lambda c: _optimizer_is(c, "deepspeed", ("muadam", "muadamw", "musgd")),
        "mup's optimizers need the base shapes of a mup model, which no model of transformers has",
        "optimizer=adamw",
    ),
    Rule(
        lambda c: _optimizer_is(c, "deepspeed", ("lamb",)) and c.zero_stage.stage > 0,
        "LAMB scales the update of each whole tensor, so DeepSpeed does not run it on ZeRO's shards",
        "zero_stage=zero0, or optimizer=adamw",
    ),
    Rule(
        lambda c: _optimizer_is(c, "deepspeed", ("lamb",)) and c.hardware.device == "cpu",
        "DeepSpeed's LAMB is a CUDA kernel",
        "optimizer=adamw",
    ),
    Rule(
        lambda c: (
            _optimizer_is(c, "deepspeed", ("lion",)) and c.hardware.device == "cpu" and c.offload.optimizer == "none"
        ),
        "DeepSpeed's Lion is a CUDA kernel, and a CPU kernel where it is offloaded",
        "offload=optimizer, or optimizer=adamw",
    ),
    Rule(
        lambda c: _optimizer_is(c, "deepspeed", ("muon",)) and c.zero_stage.stage == 3 and c.zero_stage.reduce_scatter,
        "DeepSpeed's Muon needs whole gradients, which ZeRO stage 3 has only without reduce-scatter",
        "zero_stage.reduce_scatter=false, or zero_stage=zero2",
    ),
    Rule(
        lambda c: bool(_not_taken(c.optimizer)),
        "this optimizer of DeepSpeed takes no optimizer.eps (Lion) or no optimizer.betas (Adagrad)",
        "leave it out",
    ),
    Rule(
        lambda c: c.data.source == "jsonl" and not c.data.path,
        "data=jsonl needs a file",
        "data.path=<file with one JSON object a line>",
    ),
    Rule(
        lambda c: c.model.weights == "pretrained" and c.model.path == "memlab/tiny",
        "model=tiny has no published weights",
        "model.weights=random, or another model",
    ),
    Rule(
        lambda c: c.seq_len.tokens > _learned_positions(c),
        "the model has learned position embeddings for fewer tokens than seq_len.tokens",
        "a shorter seq_len, or model.overrides.n_positions=<tokens>",
    ),
)


LIGER_FAMILIES = (
    # Source: MODEL_TYPE_TO_APPLY_LIGER_FN in liger_kernel/transformers/monkey_patch.py of liger-kernel 0.8.5, language
    # models only.
    *("deepseek_v2", "deepseek_v3", "deepseek_v4", "exaone4", "falcon_h1", "gemma", "gemma2", "gemma3_text"),
    *("gemma4_text", "glm4", "gpt_oss", "granite", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama", "llama4_text"),
    *("ministral", "mistral", "mixtral", "muse_glimmer", "nemotron", "olmo2", "olmo3", "phi3", "qwen2", "qwen3"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "smollm3"),
)
"""Values of ``model_type`` for which liger-kernel has kernels."""

LAUNCHER_PROGRAMS = {"pdsh": "pdsh", "slurm": "srun", "openmpi": "mpirun"}
"""Value of hardware.launcher -> the program that DeepSpeed starts for it."""


def unsupported(config: Config, machine: Machine | None) -> list[str]:
    """List the reasons why this combination is not supported, each with an alternative; empty if it is supported.

    ``machine``: the machine to measure on; ``None`` for a prediction, so that GPUs, packages and nodes are not checked.
    """
    reasons = [f"{rule.why}; instead: {rule.instead}" for rule in RULES if rule.when(config)]
    reasons += _zero_keys_without_effect(config)
    if machine is not None:
        reasons += _beyond_machine(config, machine)
        reasons += _beyond_nodes(config, machine)
    return reasons


def _zero_keys_without_effect(config: Config) -> Iterator[str]:
    stage = config.zero_stage.stage
    for key in _changed(config.zero_stage, ZeroStage(), but=("stage",)):
        if not applies(key, stage):
            yield f"DeepSpeed does not read zero_stage.{key} at ZeRO stage {stage}; instead: leave it out"


def _beyond_machine(config: Config, machine: Machine) -> Iterator[str]:
    hardware = config.hardware
    if hardware.device == "cuda" and not machine.gpus:
        yield (
            f"{hardware.gpus} x {hardware.gpu or 'GPU'} cannot be measured on a machine without a GPU; "
            "instead: hardware=auto, or mode=predict"
        )
    elif hardware.device == "cuda" and hardware.gpus > len(machine.gpus):
        yield (
            f"hardware.gpus={hardware.gpus}, but this machine has {len(machine.gpus)}; "
            f"instead: hardware.gpus={len(machine.gpus)}, or mode=predict"
        )
    elif hardware.device == "cuda" and hardware.gpu and hardware.gpu.lower() not in machine.gpus[0].name.lower():
        yield (
            f"the hardware entry is for {hardware.gpu}, but this machine has {machine.gpus[0].name}; "
            "instead: hardware=auto, or mode=predict"
        )
    for package, wanted in (
        ("flash_attn", config.attention.implementation == "flash_attention_2"),
        ("flash_attn_interface", config.attention.implementation == "flash_attention_3"),
    ):
        if wanted and not machine.has_package(package):
            yield f"the Python package {package} is not installed; instead: install it, or choose another option"
    package = _optimizer_package(config)
    if package and not machine.has_package(package):
        install = PYPI.get(package, package)
        yield f"the Python package {package} is not installed; instead: pip install {install}, or another optimizer"
    yield from missing_extras(config, machine)
    if "nvme" in (config.offload.optimizer, config.offload.param) and not machine.has_library("aio"):
        yield "DeepSpeed's NVMe offload needs libaio; instead: install it (Debian: libaio-dev), or offload=all"


def missing_extras(config: Config, machine: Machine) -> Iterator[str]:
    """Yield a reason for each package that adapters or kernels need and that is not installed.

    Both measurements and predictions need these packages.
    """
    for package, extra, wanted in (
        ("peft", "adapters", config.adapter.method != "none"),
        ("bitsandbytes", "adapters", config.adapter.method == "qlora"),
        ("liger_kernel", "kernels", config.kernels.implementation == "liger"),
        ("triton", "kernels", config.kernels.implementation == "liger"),
    ):
        if wanted and not machine.has_package(package):
            yield f"the Python package {package} is not installed; instead: pip install 'memlab[{extra}]'"


def _optimizer_is(config: Config, source: str, names: Collection[str]) -> bool:
    name = config.optimizer.name.lower() if source == "deepspeed" else config.optimizer.name
    return config.optimizer.source == source and name in names


def _optimizer_package(config: Config) -> str | None:
    return package_of(config.optimizer.source, config.optimizer.name)


def _not_taken(optimizer: Optimizer) -> list[str]:
    """List the hyperparameters that are set but that DeepSpeed's optimizer of this name does not take."""
    if optimizer.source != "deepspeed":
        return []
    taken = DEEPSPEED[optimizer.name.lower()]
    return [name for name in ("betas", "eps") if name not in taken and name in _changed(optimizer, Optimizer())]


def _is_offloaded(config: Config, *places: str) -> bool:
    return bool({config.offload.optimizer, config.offload.param} & set(places or ("cpu", "nvme")))


def _differ(values: Offload, *names: str) -> bool:
    return bool(set(names) & set(_changed(values, Offload())))


def _beyond_nodes(config: Config, machine: Machine) -> Iterator[str]:
    hardware = config.hardware
    if hardware.nodes == 1:
        return
    if hardware.launcher is None:
        yield "the ranks of several nodes need a launcher; instead: hardware.launcher=pdsh, slurm or openmpi"
    elif not machine.has_program(program := LAUNCHER_PROGRAMS[hardware.launcher]):
        yield f"hardware.launcher={hardware.launcher} needs {program}; instead: install it, or another launcher"
    if hardware.hostfile is None:
        yield "several nodes need a list of them; instead: hardware.hostfile=<file with '<host> slots=<gpus>' a line>"
    else:
        yield from _beyond_hostfile(config)
    if [gpu.id for gpu in machine.gpus[: hardware.gpus]] != [str(i) for i in range(len(machine.gpus[: hardware.gpus]))]:
        yield "on several nodes DeepSpeed takes the first GPUs of each; instead: start without CUDA_VISIBLE_DEVICES"
    if hardware.launcher == "openmpi" and re.search(r"[^\w@%+=:,./-]", config.allocator.conf):
        yield (
            "DeepSpeed hands this allocator.conf to mpirun in quotes, which stay in it; "
            "instead: hardware.launcher=pdsh or slurm"
        )


def _beyond_hostfile(config: Config) -> Iterator[str]:
    hardware = config.hardware
    try:
        slots = read_hostfile(hardware.hostfile)
    except ConfigError as error:
        yield f"{error}; instead: hardware.hostfile=<file with '<host> slots=<gpus>' a line>"
        return
    too_small = len(slots) < hardware.nodes or min(list(slots.values())[: hardware.nodes]) < hardware.gpus
    too_large = list(slots.values()) != [hardware.gpus] * hardware.nodes
    if too_small or (too_large and hardware.launcher != "pdsh"):  # slurm and openmpi start a rank in every slot
        found = ", ".join(f"{host} {count}" for host, count in slots.items())
        yield (
            f"the hostfile's slots ({found}) are not hardware.nodes={hardware.nodes} x hardware.gpus={hardware.gpus}; "
            "instead: a hostfile of this run's nodes"
        )


def _changed(values: object, defaults: object, but: tuple[str, ...] = ()) -> list[str]:
    names = [field.name for field in dataclasses.fields(values) if field.name not in but]
    return [name for name in names if getattr(values, name) != getattr(defaults, name)]


def _model_type(config: Config) -> str | None:
    """Return transformers' name of the model family; ``None`` if only the model's own config.json has it."""
    return (config.model.config | config.model.overrides).get("model_type")


def _learned_positions(config: Config) -> float:
    """Return the number of learned position embeddings of a GPT-2 model; infinity for any other model."""
    model = config.model.config | config.model.overrides
    return model.get("n_positions", float("inf")) if _model_type(config) == "gpt2" else float("inf")
