"""Environment variables of the ranks, and facts about this machine for the record."""

import hashlib
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import memlab
from memlab.core.command_template import effect, named_files
from memlab.core.config import Config
from memlab.core.plan import Plan, config_hash, needs_hub
from memlab.files.build_locks import holder, is_stale, may_be_removed, stale_locks
from memlab.files.disk import cache_dir
from memlab.files.redaction import is_secret_name, redact
from memlab.system.deadman import marked_by
from memlab.system.machine import Machine, detect

PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "datasets", "peft")
"""Packages whose versions change what is measured."""

ADAPTER_PACKAGES = ("bitsandbytes",)
KERNEL_PACKAGES = ("liger-kernel", "triton")
"""Optional packages whose versions change what is measured if a run uses them."""

NOT_INHERITED = (
    "CUDA_VISIBLE_DEVICES",  # memlab selects GPUs with --include, and the launcher then ignores this variable
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_CUDA_ARCH_LIST",
    "DS_ACCELERATOR",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""Variables that ranks do not inherit from the shell, because the plan or the launcher sets them."""

CHANGES_MEASUREMENT = ("NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "OMP_")
"""Prefixes of variables that change what is measured if they are set in the shell that starts memlab."""

HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
"""Variables of proxies to the hub; upper case is accepted too. The URL of a proxy may contain a password."""


def rank_environment(plan: Plan, machine: Machine) -> dict[str, str]:
    """Return the whole environment of the launcher and its ranks.

    Leaves out secrets. If the plan needs the hub, it keeps the hub's token and a proxy's password.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in NOT_INHERITED and (not _is_secret(name, value) or _is_needed(name, plan))
    }
    return {**inherited, **own_variables(plan, machine)}


def own_variables(plan: Plan, machine: Machine) -> dict[str, str]:
    """Return the variables that memlab sets for the ranks."""
    variables = {
        **plan.environment,
        # The interpreter's folder holds the tools that build DeepSpeed's ops (ninja); the venv may not be activated.
        "PATH": _put_first(Path(sys.executable).parent, "PATH"),
        "PYTHONPATH": _put_first(Path(memlab.__file__).parent.parent, "PYTHONPATH"),
        "PYTHONSAFEPATH": "1",  # a folder in the working directory must not shadow a package of the same name
        "TORCH_EXTENSIONS_DIR": str(extensions_dir()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(_threads(plan, machine))),
    }
    if machine.gpus:
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order, as in machine.py; CUDA's default order differs
        # An inherited list may name architectures that DeepSpeed cannot parse ("10.0a").
        capabilities = sorted({gpu.compute_capability for gpu in machine.gpus})
        variables["TORCH_CUDA_ARCH_LIST"] = ";".join(f"{major}.{minor}" for major, minor in capabilities)
    return variables


def inherited_variables() -> dict[str, str]:
    """Return variables of the shell that reach the ranks and change what is measured, except paths."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(CHANGES_MEASUREMENT)
        and name not in NOT_INHERITED
        and not _is_secret(name, value)
        and os.sep not in value
    }


def _threads(plan: Plan, machine: Machine) -> int:
    """Return the number of threads of a rank; by default every rank would start one per core.

    With an offloaded optimizer, which runs alone on the machine, its ranks share all cores. Otherwise each rank gets
    the cores of one GPU: all cores divided by the GPUs of the machine, also if some GPUs are unused.
    """
    alone = plan.config.offload.optimizer != "none"
    sharing = plan.ranks_per_node if alone else max(plan.ranks_per_node, len(machine.gpus))
    return max(1, len(os.sched_getaffinity(0)) // sharing)


def _put_first(folder: Path, variable: str) -> str:
    """Prepend ``folder`` to an inherited search path and drop empty entries, which mean the current folder."""
    return os.pathsep.join([str(folder), *filter(None, os.environ.get(variable, "").split(os.pathsep))])


def extensions_dir() -> Path:
    """Return the build folder of DeepSpeed's ops, one per combination of versions and processors.

    torch and DeepSpeed do not check whether a built op fits the versions and processors.
    """
    versions = package_versions()
    processors = [_cpu_model(), *sorted({gpu.compute_capability for gpu in detect().gpus})]
    built_for = hashlib.sha256(repr(processors).encode()).hexdigest()[:8]
    key = f"py{platform.python_version()}-torch{versions.get('torch')}-deepspeed{versions.get('deepspeed')}-{built_for}"
    return cache_dir() / "torch_extensions" / key


@cache
def _cpu_model() -> str:
    """Return the processor's model name: CPUAdam is compiled for exactly the processor it is built on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith("model name")), platform.machine())


def sweep_stale_locks() -> list[Path]:
    """Remove the locks of killed builds, for which torch would wait forever. Returns the removed locks.

    A new lock stays while other ranks use the folder. A lock whose build may run on another machine, or in another
    container, is removed after an hour.
    """
    folder = extensions_dir()
    folder.mkdir(parents=True, exist_ok=True)
    is_used = any(marked_by("TORCH_EXTENSIONS_DIR", str(folder)))
    return _removed([lock for lock in folder.glob("*/lock") if is_stale(lock) or not (is_used or holder(lock))])


def sweep_locks_of_commands() -> list[Path]:
    """Remove the stale locks in the folder where torch builds the extensions of users' own commands. Returns them."""
    return _removed(stale_locks(extensions_of_commands()))


def extensions_of_commands() -> Path:
    """Return the folder where torch builds the extensions of users' own commands."""
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    return Path(named) if named else cache_dir().parent / "torch_extensions"


def _removed(locks: list[Path]) -> list[Path]:
    removable = list(filter(may_be_removed, locks))
    for lock in removable:
        lock.unlink(missing_ok=True)
    return removable


# --- facts for the record ---------------------------------------------------------------------------------------------


def versions_used(plan: Plan) -> dict[str, str]:
    """Return the versions of the packages that a run of ``plan`` uses."""
    config = plan.config
    optional: tuple[str, ...] = ADAPTER_PACKAGES if config.adapter.method == "qlora" else ()
    optional += KERNEL_PACKAGES if config.kernels.implementation == "liger" else ()
    return {**package_versions(), **versions_of(optional)}


@cache
def package_versions() -> dict[str, str]:
    return {"memlab": memlab.__version__, **versions_of(PACKAGES)}


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def describe_environment(plan: Plan, machine: Machine) -> dict[str, Any]:
    """Return the facts that a measurement depends on apart from its configuration, without host name and paths."""
    variables = {**inherited_variables(), **own_variables(plan, machine)}
    private = ("PATH", "PYTHONPATH", "TORCH_EXTENSIONS_DIR")
    return {
        "python": platform.python_version(),
        **versions_used(plan),
        "git_sha": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        **describe_machine(machine),
        "variables": {name: value for name, value in variables.items() if name not in private},
    }


def describe_machine(machine: Machine) -> dict[str, Any]:
    """Return the facts of the machine that a measurement depends on, without its name."""
    return {
        "driver": machine.driver,
        "gpus": [gpu.name for gpu in machine.gpus],
        "cpu_count": os.cpu_count(),
        "platform": platform.platform(),
        "hostname_hash": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8],
    }


def fingerprint(plan: Plan, machine: Machine) -> str:
    """Hash everything that decides a measurement to 16 hexadecimal digits. Equal fingerprints measure the same."""
    return hashed([config_hash(plan.config), *_facts(plan, machine)])


def command_fingerprint(plan: Plan, predictor: Sequence[str | None]) -> str:
    """Hash everything that decides the prediction of a command. Plans that reach the command in the same way are
    equal, and so are repeats. ``predictor``: digests of the predictor's code and of what it takes from its user.
    """
    config = replace(plan.config, measure=replace(plan.config.measure, repeat=1))
    return hashed([effect(config), asdict(config.hardware), predictor, *_facts(plan, Machine())])


def _facts(plan: Plan, machine: Machine) -> list[Any]:
    """Return what decides a run apart from its configuration: versions, machine, variables, files that it names."""
    return [
        platform.python_version_tuple()[:2],
        {name: version for name, version in versions_used(plan).items() if name != "memlab"},
        machine.driver,
        [gpu.name for gpu in machine.gpus[: plan.ranks_per_node]],
        {name: value for name, value in inherited_variables().items() if name != "CUDA_DEVICE_ORDER"},
        *(_digests(plan.config) if plan.config.is_command else []),
    ]


def hashed(facts: list[Any]) -> str:
    """Hash plain values to 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


SCRIPTS = (".py", ".sh", ".yaml", ".yml", ".json", ".toml", ".jinja")
"""Ends of the names of files that say what a command does. Weights and logs have others."""

DATA = (".jsonl", ".csv", ".tsv", ".txt", ".parquet", ".arrow")


def _digests(config: Config) -> list[Any]:
    """Return digests of what a command names: of a script and of settings the content, of a model's folder that of its
    ``config.json``, of a data file size and time. If one changes, the run is another experiment."""
    named = named_files(config)
    settings = [path / "config.json" if path.is_dir() else path for path in named]
    found: list[Any] = [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in settings if path.suffix in SCRIPTS and path.is_file()
    ]
    data = (path.stat() for path in named if path.suffix in DATA and path.is_file())
    return found + [[each.st_size, each.st_mtime_ns] for each in data]


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or redact(value, []) != value


def _is_needed(name: str, plan: Plan) -> bool:
    return (name in HUB_TOKENS or name.lower() in PROXIES) and needs_hub(plan.config)


@cache
def _git(*arguments: str) -> str | None:
    return output_of("git", "-C", str(Path(memlab.__file__).parent), *arguments)


def output_of(*command: str) -> str | None:
    """Return what a command prints; ``None`` if it cannot be run, fails, or takes longer than ten seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
