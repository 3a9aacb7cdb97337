"""Rules of offloading and of the keys of ZeRO."""

from collections.abc import Iterator

from memlab.core.config import Config
from memlab.core.deepspeed_json import applies
from memlab.rules.rule import Rule, changed, has_changed


def zero_keys_without_effect(config: Config) -> Iterator[str]:
    """Yield a reason for each changed key of ``zero_optimization`` that DeepSpeed does not read at this stage."""
    stage = config.zero_stage.stage
    for key in changed(config.zero_stage, but=("stage",)):
        if not applies(key, stage):
            yield f"DeepSpeed does not read zero_stage.{key} at ZeRO stage {stage}; instead: leave it out"


def _is_offloaded(config: Config, *places: str) -> bool:
    return bool({config.offload.optimizer, config.offload.param} & set(places or ("cpu", "nvme")))


RULES = (
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
        lambda c: _is_offloaded(c, "nvme") and c.zero_stage.stage < 3,
        "NVMe offload exists at ZeRO stage 3 only",
        "zero_stage=zero3, or offload=optimizer",
    ),
    Rule(
        lambda c: _is_offloaded(c, "nvme") and not c.offload.nvme_path,
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
        lambda c: not _is_offloaded(c) and changed(c.offload, but=("ratio", "super_offload")),
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
            and has_changed(c.offload, "pipeline_read", "pipeline_write", "optimizer_buffer_count")
        ),
        "pipeline_read, pipeline_write and optimizer_buffer_count belong to an optimizer on NVMe",
        "offload=optimizer_nvme, or leave them out",
    ),
    Rule(
        lambda c: (
            _is_offloaded(c)
            and c.offload.param != "nvme"
            and has_changed(c.offload, "param_buffer_count", "param_buffer_size", "max_in_cpu")
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
        lambda c: _is_offloaded(c) and not c.offload.super_offload and has_changed(c.offload, "cpuadam_cores_perc"),
        "offload.cpuadam_cores_perc belongs to super_offload",
        "offload.super_offload=true, or leave offload.cpuadam_cores_perc out",
    ),
    Rule(
        lambda c: c.zero_stage.zenflow and c.offload.optimizer != "cpu",
        "ZenFlow overlaps an optimizer that is offloaded to the CPU",
        "offload=optimizer, or leave zero_stage.zenflow out",
    ),
)
