"""Versions, environment and the script."""

import hashlib
import os
import platform
import re
import sys
import sysconfig
from importlib import metadata
from typing import Any

import torch

from ...files.redaction import is_secret_name

MODULES = (
    *("torch", "transformers", "deepspeed", "accelerate", "trl", "peft", "datasets"),
    *("bitsandbytes", "triton", "axolotl", "llamafactory", "unsloth", "torchtitan", "lightning"),
    *("flash_attn", "liger_kernel", "xformers"),
)
"""Modules whose distribution has the same name, but for hyphens."""

_VARIABLES = re.compile(
    r"(PYTORCH|TORCH|NCCL|CUDA|CUBLAS|OMP|MKL|ACCELERATE|DS|TRANSFORMERS|HF)_\w+|LOCAL_WORLD_SIZE|WORLD_SIZE"
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the distributions that the process has imported."""
    found = {"python": platform.python_version()}
    for module in MODULES:
        if module in sys.modules:
            distribution = module.replace("_", "-")
            try:
                found[distribution] = metadata.version(distribution)
            except metadata.PackageNotFoundError:
                found[distribution] = str(getattr(sys.modules[module], "__version__", "unknown"))
    return found


def runtime_versions() -> dict[str, Any]:
    """Return the versions of CUDA, NCCL and cuDNN, which package metadata does not contain."""
    if not torch.cuda.is_initialized():
        return {"cuda": None, "nccl": None, "cudnn": None}
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {"cuda": torch.version.cuda, "nccl": nccl, "cudnn": torch.backends.cudnn.version()}


def environment() -> dict[str, str]:
    """Return the variables that change memory or speed."""
    return {
        name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name) and not is_secret_name(name)
    }


def script() -> dict[str, Any]:
    """Describe the script: its path as it is found from the current folder, its digest, its arguments."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    digest = _sha256(main) if main and os.path.isfile(main) else None
    path = os.path.relpath(main) if main else None
    return {"path": path, "sha256": digest, "argv": sys.argv, "cwd": os.getcwd()}


def own_modules(script: str | None) -> dict[str, str]:
    """Return path -> digest of the modules that lie below the folder of the script or the current folder, without
    those of installed packages and of memlab. ``script``: the path of the script."""
    roots = _folders(os.path.dirname(script or ""), os.getcwd())
    memlab = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    installed = _folders(*sysconfig.get_paths().values(), memlab)
    files = {file for each in list(sys.modules.values()) if (file := getattr(each, "__file__", None))}
    others = map(os.path.realpath, (file for file in files if not file.startswith(installed)))  # slow for thousands
    own = sorted(file for file in set(others) if file.startswith(roots) and not file.startswith(installed))
    return {os.path.relpath(file): _sha256(file) for file in own if os.path.isfile(file)}


def _folders(*paths: str) -> tuple[str, ...]:
    return tuple(os.path.join(os.path.realpath(path), "") for path in paths)


def _sha256(file: str) -> str:
    with open(file, "rb") as content:
        return hashlib.sha256(content.read()).hexdigest()
