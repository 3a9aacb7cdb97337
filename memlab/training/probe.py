"""Facts about this machine that only torch knows, as one line of JSON: ``python -m memlab.training.probe [MODEL]``.

``MODEL`` is the config group ``model`` as JSON. Its parameters are counted on the meta device, without memory.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.cpp_extension import CUDA_HOME

from memlab.core.config import Model
from memlab.system.environment import output_of


def main() -> None:
    model = Model(**json.loads(sys.argv[1])) if len(sys.argv) > 1 else None
    facts = {
        "cuda": torch.version.cuda,
        "available": torch.cuda.is_available(),
        "architectures": torch.cuda.get_arch_list(),
        "cuda_home": CUDA_HOME,
        "nvcc": nvcc_version(CUDA_HOME),
        "parameters": count_parameters(model) if model else None,
    }
    print(json.dumps(facts))


def nvcc_version(cuda_home: str | None) -> str | None:
    """Return the version of the nvcc that DeepSpeed would call, such as ``12.8``; ``None`` if missing or failing."""
    said = None if cuda_home is None else output_of(str(Path(cuda_home) / "bin" / "nvcc"), "-V")
    match = re.search(r"release (\d+\.\d+)", said or "")
    return match[1] if match else None


def count_parameters(model: Model) -> int | None:
    """Count the parameters of a model; ``None`` if its configuration would have to be fetched from the hub."""
    if not model.config and not Path(model.path).is_dir():
        return None
    from transformers import AutoModelForCausalLM

    from memlab.meters.facts.models import parameter_counts
    from memlab.training.model_config import model_config

    options: dict[str, Any] = {"trust_remote_code": model.trust_remote_code}
    with torch.device("meta"):
        return parameter_counts(AutoModelForCausalLM.from_config(model_config(model), **options))[0]


if __name__ == "__main__":
    main()
