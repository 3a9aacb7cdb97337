"""Configuration of a command that memlab did not compose, from what its ranks found in their processes.

The keys are those of conf/. A key is translated only where it means the same thing in memlab's own runs; every other
key is unknown, and named as such. Keys that have no effect under the values that were found (the rank of an adapter,
if there is none) keep their defaults.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any

from memlab.core.config import GROUPS, LIBRARIES, Adapter, Checkpointing, Config, Offload, Precision
from memlab.core.config_values import from_dict, nested
from memlab.core.deepspeed_json import applies
from memlab.core.errors import ConfigError
from memlab.core.plan import NOT_MEASURED, Plan, run_id
from memlab.core.record import Facts, arguments_of, first_engine, trained_model
from memlab.core.sizes import GIB
from memlab.files.conf_files import gpu_here, list_price, matching_option, option_values, shipped_model

SETTINGS = {*NOT_MEASURED, *LIBRARIES, "own", "mode", "measure.repeat"} - {"hardware.hostfile"}
"""Groups and keys that say nothing about the command."""

OPTIMIZERS = {
    "AdamW": "adamw_torch",
    "SGD": "sgd",
    "Adagrad": "adagrad",
    "RMSprop": "rmsprop",
    "Adafactor": "adafactor",
}
"""Classes of torch.optim and transformers -> transformers' name for them."""

OTHER_OPTIONS = {"hardware": "auto", "predict": "default", "sweep": "none", "training": "command"}
"""Group -> option, where the option does not follow from single values."""


def found_values(
    ranks: Sequence[Mapping[str, Any]], rows: Mapping[int, Sequence[Mapping[str, Any]]], command: str
) -> dict[str, Any]:
    """Translate the files of the ranks, lowest rank first, into dotted keys with their values.

    ``rows``: rank -> the rows of its steps. ``command``: the command line that ran. Without ranks, only the command is
    known.
    """
    known: dict[str, Any] = {"training.loop": "command", "training.command": command}
    known |= {"training.auto": True, "measure.protocol": "cold"}
    known |= {"measure.snapshot": False, "measure.snapshot_ranks": [], "measure.profile": False}
    if ranks:
        facts = ranks[0]["attached"]
        known |= _hardware(ranks) | _shape(facts, rows) | _model(facts) | _deepspeed(facts) | _trainer(facts)
        known |= _precision(facts) | _attention_and_checkpointing(facts) | _adapter(facts) | _optimizer(facts)
        known |= {"allocator.conf": _allocator(facts), "measure.steps": max(1, len(ranks[0]["step_seconds"]))}
    return _valid(known)


def _hardware(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, facts = ranks[0], ranks[0]["attached"]
    world_size = facts.get("world_size") or len(ranks)
    # In ranks on a CPU, accelerate says that each has a node of its own where the launcher says nothing (1.15,
    # PartialState); the numbers of the ranks on their node are the launcher's.
    numbered = 1 + max(rank["attached"].get("local_rank") or 0 for rank in ranks)
    here = min(max(facts.get("local_world_size") or world_size, numbered), world_size)
    on_gpu = first["device"].startswith("cuda")
    memory = round(total / GIB, 2) if (total := first["device_total_bytes"]) else None
    name = first["device_name"]
    price = list_price(name, here) if on_gpu else None
    machine = gpu_here(name, memory) if on_gpu else option_values("hardware", "cpu") | {"gpu": name}
    return {
        "hardware.device": "cuda" if on_gpu else "cpu",
        "hardware.nodes": max(1, world_size // here),
        "hardware.hostfile": None,
        "hardware.launcher": None,
        **_prefixed("hardware", machine),
        **({"hardware.usd_per_gpu_hour": price.usd_per_gpu_hour} if price else {}),
        "hardware.gpus": here,
    }


def _shape(facts: Facts, rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return batch and length as the model saw them: the largest of all steps and ranks."""
    engine = first_engine(facts)

    def largest(key: str, default: int | None = None) -> int | None:
        return max((row[key] for each in rows.values() for row in each if row.get(key)), default=default)

    return {
        "batch.micro": largest("largest_micro_batch", engine.get("micro_batch")),
        "batch.accumulation": largest("micro_batches", engine.get("accumulation")),
        "seq_len.tokens": largest("padded_length"),
    }


def _model(facts: Facts) -> dict[str, Any]:
    config = _keys(trained_model(facts).get("config"))
    path = config.get("_name_or_path")
    if not path:
        return {}
    known = {"model.path": path, "model.config": shipped_model(config)[1], "model.overrides": {}}
    if not config.get("auto_map"):  # transformers' own code: nothing to trust
        known["model.trust_remote_code"] = False
    if "load" in facts.get("phases", {}):
        known["model.weights"] = "pretrained"
    return known


def _deepspeed(facts: Facts) -> dict[str, Any]:
    """Return what the first engine's JSON says; nothing without DeepSpeed, whose stage 0 is not plain torch."""
    engine = first_engine(facts)
    if not engine:
        return {}
    zero, json = dict(engine.get("zero") or {}), engine.get("config") or {}
    offload = {part: _keys(zero.pop(f"offload_{part}", None)) for part in ("optimizer", "param")}
    return {
        **_prefixed("zero_stage", _zero_stage(zero, _keys(json.get("zero_optimization")))),
        **_prefixed("offload", _offload(offload["optimizer"], offload["param"])),
        # transformers never calls DeepSpeed's own checkpointing
        **_prefixed("checkpointing", _of_group(Checkpointing, _keys(json.get("activation_checkpointing")))),
        "optimizer.gradient_clipping": json.get("gradient_clipping") or 0.0,
    }


def _zero_stage(zero: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Translate ``zero_optimization`` with all its keys; DeepSpeed holds some without the prefix ``stage3_``.

    ``stated``: the block of the JSON, which alone shows whether the script set keys whose values are dictionaries.
    """
    number, values = zero.get("stage", 0), asdict(Config().zero_stage)
    for key, default in values.items():
        if default == {}:
            values[key] = stated.get(key) or {}
        elif applies(key, number):
            values[key] = zero.get(key, zero.get(key.removeprefix("stage3_")))
    if values["overlap_comm"] == (number == 3):
        values["overlap_comm"] = None  # what memlab's None stands for
    return values


def _offload(optimizer: Mapping[str, Any], param: Mapping[str, Any]) -> dict[str, Any]:
    values = asdict(Offload())
    values |= {"optimizer": optimizer.get("device") or "none", "param": param.get("device") or "none"}
    values |= {key: param[key] for key in ("pin_memory", "nvme_path", "max_in_cpu") if key in param}
    values |= {f"param_{key}": param[key] for key in ("buffer_count", "buffer_size") if key in param}
    values |= _of_group(Offload, optimizer)
    if "buffer_count" in optimizer:
        values["optimizer_buffer_count"] = optimizer["buffer_count"]
    return values


def _of_group(group: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose keys a config group has."""
    return {key: value for key, value in values.items() if key in _names(group)}


def _trainer(facts: Facts) -> dict[str, Any]:
    values = arguments_of(facts)
    if not values:
        return {}
    known = {
        "seed": values.get("seed"),
        "kernels.implementation": "liger" if values.get("use_liger_kernel") else "none",
    }
    if not facts.get("deepspeed") and values.get("max_grad_norm") is not None:
        known["optimizer.gradient_clipping"] = values["max_grad_norm"]
    return known


def _precision(facts: Facts) -> dict[str, Any]:
    """Return the precision of DeepSpeed's engine, or plain 32 bits. torch's autocast is neither."""
    engine = first_engine(facts)
    if not engine:
        mixed = (facts.get("accelerate") or {}).get("mixed_precision")
        plain = set(trained_model(facts).get("dtypes") or ()) == {"float32"} and mixed in (None, "no")
        autocast = arguments_of(facts)
        is_fp32 = plain and facts.get("training_arguments") and not (autocast.get("bf16") or autocast.get("fp16"))
        return _prefixed("precision", asdict(Precision(dtype="fp32"))) if is_fp32 else {}
    json = engine.get("config") or {}
    dtype = next((name for name in ("bf16", "fp16") if _keys(json.get(name)).get("enabled")), "fp32")
    values = asdict(Precision(dtype=dtype)) | _of_group(Precision, _keys(json.get(dtype)))
    stated = {
        "grad_accum_dtype": _keys(json.get("data_types")).get("grad_accum_dtype"),
        "communication_dtype": json.get("communication_data_type"),
    }
    for key, value in stated.items():  # where the JSON says nothing, DeepSpeed chooses
        values[key] = None if value == dtype else value
        if value is None:
            del values[key]
    return _prefixed("precision", values)


def _attention_and_checkpointing(facts: Facts) -> dict[str, Any]:
    model = trained_model(facts)
    known: dict[str, Any] = {"attention.implementation": model.get("attention")}
    if model.get("gradient_checkpointing") is not None:
        enabled = bool(model["gradient_checkpointing"])
        how = _keys(arguments_of(facts).get("gradient_checkpointing_kwargs")) if enabled else {"use_reentrant": False}
        values = {**asdict(Checkpointing(enabled=enabled)), "reentrant": how.get("use_reentrant")}
        known |= _prefixed("checkpointing", values)
    return known


def _adapter(facts: Facts) -> dict[str, Any]:
    model = trained_model(facts)
    if not model:
        return {}
    adapters, bits = list((model.get("adapters") or {}).values()), model.get("quantization") or {}
    if not all(isinstance(each, dict) for each in (bits, *adapters)):
        return {}
    if not adapters:
        return _prefixed("adapter", asdict(Adapter())) if not bits else {}
    peft = adapters[0]
    if peft.get("peft_type") not in (None, "LORA") or (bits and not bits.get("load_in_4bit")):
        return {}
    values = asdict(Adapter(method="qlora" if bits else "lora"))
    values |= {"rank": peft.get("r"), "alpha": peft.get("lora_alpha"), "dropout": peft.get("lora_dropout")}
    targets = peft.get("target_modules")
    values["target_modules"] = sorted(map(str, targets)) if isinstance(targets, list) else None
    if bits:
        names = {"torch.bfloat16": "bf16", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
        storage = bits.get("bnb_4bit_quant_storage")
        values["quant_type"] = bits.get("bnb_4bit_quant_type")
        values["double_quant"] = bits.get("bnb_4bit_use_double_quant")
        values["quant_storage"] = names.get(str(storage), storage)
    return _prefixed("adapter", values)


def _optimizer(facts: Facts) -> dict[str, Any]:
    stated = _keys((first_engine(facts).get("config") or {}).get("optimizer"))
    used: dict[str, Any] = max(facts.get("optimizers") or (), key=lambda one: one.get("calls") or 0, default={})
    known = dict(used.get("defaults") or _arguments_of_optimizer(facts))
    if stated:
        known |= {"source": "deepspeed", "name": stated.get("type"), **_keys(stated.get("params"))}
    else:
        known |= {"source": "transformers", "name": _name_of(used, facts)}
    values = {key: known[key] for key in ("source", "name", "lr", "eps", "weight_decay") if known.get(key) is not None}
    if isinstance(known.get("betas"), list):
        values["betas"] = [float(beta) for beta in known["betas"] if isinstance(beta, int | float)]
    return _prefixed("optimizer", values)


def _arguments_of_optimizer(facts: Facts) -> dict[str, Any]:
    """Return what the TrainingArguments set, for an optimizer that the rank itself no longer knows."""
    values = arguments_of(facts)
    names = {"lr": "learning_rate", "eps": "adam_epsilon", "weight_decay": "weight_decay"}
    known = {key: values[name] for key, name in names.items() if name in values}
    betas = [values.get("adam_beta1"), values.get("adam_beta2")]
    return known if None in betas else {**known, "betas": betas}


def _name_of(optimizer: Mapping[str, Any], facts: Facts) -> str | None:
    """Return transformers' name of an optimizer class."""
    path = str(optimizer.get("class"))
    if path.startswith(("torch.optim.", "transformers.")):
        name = OPTIMIZERS.get(path.rpartition(".")[2])
        return f"{name}_fused" if name == "adamw_torch" and (optimizer.get("defaults") or {}).get("fused") else name
    return arguments_of(facts).get("optim")


def _allocator(facts: Facts) -> str:
    environment = facts.get("environment") or {}
    return environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF") or ""


# --- from single values to a plan


def plan_found(known: Mapping[str, Any]) -> Plan:
    """Make the plan of a command of which only these values (by dotted key) are known, as far as they are valid.

    The groups and keys that are not known hold defaults in its configuration.
    """
    values = _valid(known)
    config, unknown = from_dict(nested(values)), list(_unknown(values))
    return Plan(
        run_id=run_id(config, unknown),
        config=config,
        choices=_choices(values),
        world_size=1,
        deepspeed={},
        training_args={},
        environment={},
        unknown_config=unknown,
    )


def _valid(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, by dotted key, that the schema takes."""
    pairs = [{"optimizer.source": known.get("optimizer.source"), "optimizer.name": known.get("optimizer.name")}]
    pairs += [{key: value} for key, value in known.items() if key not in pairs[0]]
    values: dict[str, Any] = {}
    for pair in pairs:
        with suppress(ConfigError):  # ``None`` often means not known, and for some values there is no word
            from_dict(nested(pair))
            values |= pair
    return values


def _keys(value: Any) -> dict[str, Any]:
    """Return a block of a library's configuration; empty if it is none, as where a word stands for a block."""
    return value if isinstance(value, dict) else {}


def _names(group: Any) -> list[str]:
    return [field.name for field in fields(group)]


def _prefixed(group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{group}.{key}": value for key, value in values.items()}


def _unknown(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what ``values`` lack: the name of a group without any known key, else the dotted keys."""
    for name in _names(Config):
        if name in SETTINGS:
            continue
        if name not in GROUPS:
            yield from () if name in values else (name,)
            continue
        keys = [f"{name}.{key}" for key in _names(Config.__dataclass_fields__[name].type)]
        missing = [key for key in keys if key not in values and key not in SETTINGS]
        yield from (name,) if len(missing) == len(keys) else missing


def _choices(values: Mapping[str, Any]) -> dict[str, str]:
    """Return group -> shipped option, where one says what was found."""
    found = dict(OTHER_OPTIONS)
    for group in GROUPS:
        known = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{group}.")}
        if group not in found and (option := matching_option(group, known)):
            found[group] = option
    return found
