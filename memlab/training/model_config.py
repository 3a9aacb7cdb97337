"""The Hugging Face configuration of a model, as every rank reads it.

``python -m memlab.training.model_config`` checks configurations in a process without torch, because importing
transformers takes three times as long with torch.
"""

import json
import sys

if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # transformers then treats torch as not installed

from transformers import AutoConfig, PretrainedConfig

from memlab.core.config import Model
from memlab.core.errors import ConfigError, nearest

SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings"),
)
"""Configuration keys whose value, if it is a number, must be a whole number above 0. Some families rename them."""


def model_config(model: Model) -> PretrainedConfig:
    """Return the configuration from the shipped values or from ``model.path``, with the user's overrides.

    Raises :class:`ConfigError` for an override of an unknown key or with an invalid value.
    """
    if model.config:
        values = dict(model.config)
        if "model_type" not in values:
            raise ConfigError("model.config: no 'model_type', the family as transformers calls it: llama, qwen3, ...")
        config = AutoConfig.for_model(values.pop("model_type"), **values)
    else:
        config = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    has_own_code = not type(config).__module__.startswith("transformers.")  # such code may read any key
    for key, value in model.overrides.items():
        if not has_own_code and not hasattr(config, key):
            hint = nearest(key, config.to_dict())
            raise ConfigError(f"model.overrides.{key}: {type(config).__name__} has no such key. {hint}")
        try:
            setattr(config, key, value)
        except Exception as error:
            raise ConfigError(f"model.overrides.{key}: {_reason(error)}") from error
    return config


def _reason(error: Exception) -> str:
    """Shorten a message of transformers to its first line, or to its second if the first ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[1] if lines[0].endswith(":") and len(lines) > 1 else lines[0]


def problem_of(model: Model) -> str | None:
    """Return one line with the reason why the model cannot be built; ``None`` if no reason is found."""
    try:
        config = model_config(model)
    except ConfigError as error:
        return str(error)
    except Exception as error:
        reason = _reason(error)
        if "trust_remote_code" in str(error):
            reason = "it needs code of its own, which runs with model.trust_remote_code=true"
        return f"model.path={model.path}: {reason}"
    for size in SIZES:
        value = getattr(config, size, None)
        if isinstance(value, int) and value < 1:
            name = config.attribute_map.get(size, size)
            place = "overrides" if {name, size} & model.overrides.keys() else "config"
            return f"model.{place}.{name} must be at least 1, not {value}"
    return None


def main() -> None:
    """Read a list of models as JSON from standard input; print a list of reasons or nulls to standard output."""
    print(json.dumps([problem_of(Model(**values)) for values in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
