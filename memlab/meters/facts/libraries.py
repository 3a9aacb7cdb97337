"""Settings that the script gave to DeepSpeed, transformers, accelerate and datasets."""

import os
from typing import Any

from ..script_objects import trains
from ..session import Session
from .models import class_name


def engines(session: Session) -> list[dict[str, Any]] | None:
    """Describe DeepSpeed's engines, with their configurations as they resolved them; those that train come first."""
    found = [
        {
            "config": engine._config._param_dict,
            "zero": engine._config.zero_config.model_dump(mode="json"),
            "optimizer": class_name(engine.optimizer),
            "micro_batch": engine.train_micro_batch_size_per_gpu(),
            "accumulation": engine.gradient_accumulation_steps(),
            "train_batch": engine.train_batch_size(),
        }
        for engine in sorted(session.objects.engines, key=trains, reverse=True)
    ]
    return found or None


def trainer(session: Session) -> str | None:
    known = session.objects.trainer
    return class_name(known) if known else None


def training_arguments(session: Session) -> dict[str, Any] | None:
    known = session.objects.trainer
    return {"class": class_name(known.args), "values": known.args.to_dict()} if known else None


def accelerator(session: Session) -> dict[str, Any] | None:
    """Describe the Accelerator, which Trainer makes as well."""
    known = session.objects.accelerator
    if not known:
        return None
    fsdp = getattr(known.state, "fsdp_plugin", None)
    return {
        "distributed_type": known.distributed_type.value,
        "mixed_precision": known.mixed_precision,
        "accumulation": known.gradient_accumulation_steps,
        "dynamo": known.state.dynamo_plugin.to_dict() if getattr(known.state, "dynamo_plugin", None) else None,
        "fsdp": vars(fsdp) if fsdp else None,
    }


def data_files(session: Session) -> list[dict[str, Any]] | None:
    """List names and sizes of the files that data sets were made of; the size of a remote file is not known."""
    sizes = {file: os.path.getsize(file) if os.path.exists(file) else None for file in session.data_files}
    return [{"name": os.path.basename(file), "path": file, "bytes": size} for file, size in sizes.items()] or None
