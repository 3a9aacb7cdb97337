"""Facts that a rank of a command found in its process: ``attached`` of its file (memlab/attach/__init__.py)."""

from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]


def trained_model(facts: Facts) -> Mapping[str, Any]:
    """Return the largest model that an optimizer trains; empty if none is known."""
    models = [model for model in facts.get("models") or () if model.get("trained")]
    return max(models, key=lambda model: model.get("parameters") or 0, default={})


def first_engine(facts: Facts) -> Mapping[str, Any]:
    """Return the first engine of DeepSpeed, which trains if one does; empty without DeepSpeed."""
    return next(iter(facts.get("deepspeed") or ()), {})
