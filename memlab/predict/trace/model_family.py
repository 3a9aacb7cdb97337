"""A family of language models, as transformers names it, with a small model of it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelFamily:
    """A ``model_type`` of transformers and the class of its causal language model. ``config``: the value of
    ``Config.model.config``; ``None`` if there is none, and ``reason`` says why."""

    name: str
    model: str
    config: dict[str, Any] | None = None
    attention: str = "sdpa"
    reason: str = ""
