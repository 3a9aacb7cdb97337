"""Facts about this machine that a plan depends on. Only this module reads them from the machine."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from memlab.core.config import Config
from memlab.core.plan import Plan, needs_hub
from memlab.files.build_locks import stale_locks
from memlab.rules.unsupported import unsupported
from memlab.system.environment import (
    cache_dir,
    extensions_dir,
    extensions_of_commands,
    output_of,
    rank_environment,
    sweep_locks_of_commands,
    sweep_stale_locks,
    versions_of,
)
from memlab.system.machine import Gpu, Machine, ask_driver, nvml_handle
from memlab.system.sandbox.limits import free_host_memory

PROBE_TIMEOUT_S = 120
HUB_TIMEOUT_S = 5
HUB = "https://huggingface.co"
SHARED_MEMORY = Path("/dev/shm")

REQUIREMENTS = {
    "torch": ">=2.8",
    "transformers": ">=5.0,<6",
    "accelerate": ">=1.1",
    "deepspeed": ">=0.19.5,<0.20",
    "hydra-core": ">=1.3.6,<1.4",
    "omegaconf": ">=2.3,<2.4",
}
"""Versions that work together. Comments in pyproject.toml give the reasons; a test compares both lists."""


@dataclass(frozen=True)
class Process:
    """A process that has memory on a GPU. ``used_bytes`` is ``None`` if the driver does not report it."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True)
class GpuUse(Gpu):
    """A GPU that the plan would use, and its current use by other processes."""

    used_bytes: int = 0
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class TorchFacts:
    """Output of memlab.training.probe. With ``error``, a rank cannot import torch, and all other fields are unset."""

    error: str | None = None
    cuda: str | None = None  # the version that torch was built with; None: a build without CUDA
    available: bool = False  # whether torch can use the GPUs
    architectures: list[str] = field(default_factory=list)
    cuda_home: str | None = None
    nvcc: str | None = None
    parameters: int | None = None


@dataclass(frozen=True)
class Facts:
    """Facts about the machine for one plan, sizes in bytes. ``None``: missing, or does not apply to this plan."""

    plan: Plan
    reasons: tuple[str, ...] = ()  # why the plan is unsupported
    gpus: tuple[GpuUse, ...] = ()
    driver: str | None = None
    driver_cuda: tuple[int, int] | None = None  # the newest CUDA that the driver runs
    versions: Mapping[str, str] = field(default_factory=dict)
    torch: TorchFacts = field(default_factory=TorchFacts)
    compiler: str | None = None
    ninja: str | None = None
    free_disk: Mapping[str, int | None] = field(default_factory=dict)  # folder -> free; None: not writable
    free_shared_memory: int | None = None
    free_host_memory: int = 0
    lockable: int | None = None  # RLIMIT_MEMLOCK; None: unlimited
    removed_locks: tuple[Path, ...] = ()
    kept_locks: tuple[Path, ...] = ()  # stale, but the build may run where this machine cannot look
    hub: str | None = None  # "reached", "offline", or the error

    @property
    def config(self) -> Config:
        return self.plan.config


def gather(plan: Plan, machine: Machine) -> Facts:
    """Gather all facts that the checks need. Takes a few seconds: a separate process imports torch."""
    config = plan.config
    environment = rank_environment(plan, machine)
    gpus = machine.gpus[: plan.world_size] if config.hardware.device == "cuda" else ()
    compiler = shutil.which(environment.get("CXX", "c++"), path=environment["PATH"])
    version = (compiler and output_of(compiler, "--version")) or ""
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Facts(
        plan=plan,
        reasons=tuple(unsupported(config, machine)),
        gpus=_ask_driver(lambda nvml: tuple(_gpu_use(nvml, gpu) for gpu in gpus)) or (),
        driver=machine.driver,
        driver_cuda=_ask_driver(_driver_cuda),
        versions=versions_of(tuple(REQUIREMENTS)),
        torch=_probe_torch(config, environment),
        compiler=next(iter(version.splitlines()), None),
        ninja=shutil.which("ninja", path=environment["PATH"]),
        free_disk={str(folder): _free_bytes(folder) for folder in _folders_written(config)},
        free_shared_memory=_free_bytes(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None,
        free_host_memory=free_host_memory(),
        lockable=None if locked == resource.RLIM_INFINITY else locked,
        removed_locks=_remove_locks(),
        kept_locks=(*stale_locks(extensions_dir()), *stale_locks(extensions_of_commands())),
        hub=_reach_hub(environment) if _uses_hub(config) else None,
    )


def _remove_locks() -> tuple[Path, ...]:
    own = sweep_stale_locks() if _free_bytes(cache_dir()) is not None else []
    return (*own, *sweep_locks_of_commands())


# --- the driver -------------------------------------------------------------------------------------------------------


def _ask_driver(question: Callable) -> Any:
    """Return ``question(pynvml)``, or ``None`` if there is no driver or it raises an error."""

    def asked(pynvml) -> Any:
        with contextlib.suppress(pynvml.NVMLError):
            return question(pynvml)

    return ask_driver(asked)


def _driver_cuda(pynvml) -> tuple[int, int]:
    version = pynvml.nvmlSystemGetCudaDriverVersion()  # 12080: CUDA 12.8
    return version // 1000, version % 1000 // 10


def _gpu_use(pynvml, gpu: Gpu) -> GpuUse:
    handle = nvml_handle(pynvml, gpu.id)
    used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    return GpuUse(**vars(gpu), used_bytes=used, processes=tuple(_processes(pynvml, handle)))


def _processes(pynvml, handle) -> Iterator[Process]:
    with contextlib.suppress(pynvml.NVMLError):  # the driver lists no processes of a MIG slice or in some containers
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            yield Process(process.pid, _process_name(pynvml, process.pid), process.usedGpuMemory)


def _process_name(pynvml, pid: int) -> str:
    try:
        return Path(pynvml.nvmlSystemGetProcessName(pid)).name
    except pynvml.NVMLError:  # the process is in another container
        return "unknown"


# --- programs ---------------------------------------------------------------------------------------------------------


def _probe_torch(config: Config, environment: dict[str, str]) -> TorchFacts:
    """Run memlab.training.probe in the environment of a rank. It counts the model's parameters if the plan offloads."""
    offloads = (config.offload.optimizer, config.offload.param) != ("none", "none")
    model = [json.dumps(asdict(config.model))] if offloads else []
    command = [sys.executable, "-m", "memlab.training.probe", *model]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return TorchFacts(error=f"no answer after {PROBE_TIMEOUT_S} s")
    if done.returncode != 0:
        return TorchFacts(error=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300])
    return TorchFacts(**json.loads(done.stdout.splitlines()[-1]))


# --- space and the hub ------------------------------------------------------------------------------------------------


def _folders_written(config: Config) -> list[Path]:
    """List the folders that a run writes: run folders, built ops and the NVMe folder of offloaded states."""
    nvme = [Path(config.offload.nvme_path)] if config.offload.nvme_path else []
    return [Path("outputs").resolve(), cache_dir(), *nvme]


def _free_bytes(folder: Path) -> int | None:
    """Return the free bytes of the file system of ``folder``, which may not exist yet; ``None`` if not writable."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free if os.access(existing, os.W_OK) else None


def _uses_hub(config: Config) -> bool:
    """Whether a run needs the Hugging Face hub. A model and its tokenizer in a local folder do not need it."""
    return needs_hub(config) and (config.data.source == "guanaco" or not Path(config.model.path).is_dir())


def _reach_hub(environment: Mapping[str, str]) -> str:
    if environment.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return "offline"
    request = urllib.request.Request(os.environ.get("HF_ENDPOINT", HUB), method="HEAD")
    try:
        with contextlib.suppress(urllib.error.HTTPError):  # any answer shows that the hub can be reached
            urllib.request.urlopen(request, timeout=HUB_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return "reached"
