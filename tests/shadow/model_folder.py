"""A model as ``hf download`` without weights leaves it: its configuration alone."""

import json
from pathlib import Path

WIDTH, LAYERS, VOCABULARY = 256, 2, 1024
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
}


def model_folder(folder: Path, **changes) -> Path:
    """Make a small Llama in ``folder``. ``changes``: other keys of its configuration."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder
