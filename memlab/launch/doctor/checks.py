"""The doctor's checks: pure functions from facts to findings, in display order."""

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from memlab.core.diagnosis import FAIL, OK, WARN, Diagnosis
from memlab.core.sizes import GIB, in_gib
from memlab.launch.doctor.facts import REQUIREMENTS, Facts, GpuUse
from memlab.launch.doctor.ops import NEED_NVCC, needed_ops

IDLE_BYTES = GIB
"""Bytes that the driver may use on an idle GPU."""

FREE_DISK_BYTES = GIB
"""Free disk space that suffices for run folders and DeepSpeed's ops."""

NCCL_SHARED_BYTES = GIB
"""Shared memory for NCCL that NVIDIA's containers recommend: ``--shm-size=1g``."""

SHM_COMM_BYTES = 2 * (1 + 32) * 2**20
"""Shared memory of one CPU rank: ``struct allreduce_workspace`` of DeepSpeed 0.19.8, csrc/cpu/comm/shm.cpp."""


def check_plan(facts: Facts) -> Iterator[Diagnosis]:
    for reason in facts.reasons:
        why, _, instead = reason.partition("; instead: ")
        yield Diagnosis(FAIL, "plan", why, instead)
    if not facts.reasons:
        hardware = facts.config.hardware
        yield Diagnosis(OK, "plan", f"{facts.plan.run_id} on {hardware.gpus} x {hardware.gpu}")


def check_gpus(facts: Facts) -> Iterator[Diagnosis]:
    if facts.config.hardware.device == "cpu":
        yield Diagnosis(OK, "GPUs", "none needed: the ranks run on the CPU")
    for gpu in facts.gpus:
        yield _gpu_finding(gpu)


def _gpu_finding(gpu: GpuUse) -> Diagnosis:
    subject = f"GPU {gpu.id}"
    if gpu.processes:
        pids = " ".join(str(process.pid) for process in gpu.processes)
        who = ", ".join(f"{one.name} (pid {one.pid}, {_gib(one.used_bytes)})" for one in gpu.processes)
        return Diagnosis(FAIL, subject, f"{gpu.name} is in use by {who}", f"wait for it, or end it: kill {pids}")
    if gpu.used_bytes > IDLE_BYTES:
        what = f"{gpu.name} has {_gib(gpu.used_bytes)} in use by a process that is not visible from here"
        return Diagnosis(WARN, subject, what, "look for it outside this container: nvidia-smi on the host")
    return Diagnosis(OK, subject, f"{gpu.name} is free, {_gib(gpu.used_bytes)} in use")


def check_versions(facts: Facts) -> Iterator[Diagnosis]:
    wrong = {
        package: wanted
        for package, wanted in REQUIREMENTS.items()
        if not SpecifierSet(wanted, prereleases=True).contains(facts.versions.get(package, "0"))
    }
    for package, wanted in wrong.items():
        found = facts.versions.get(package, "none")
        yield Diagnosis(
            FAIL, "versions", f"{package} {wanted} is needed, found {found}", f"pip install '{package}{wanted}'"
        )
    if not wrong:
        yield Diagnosis(OK, "versions", ", ".join(f"{package} {facts.versions[package]}" for package in REQUIREMENTS))


def check_torch(facts: Facts) -> Iterator[Diagnosis]:
    """Check whether torch can use the GPUs: its CUDA version against the driver's, its kernels against the GPUs."""
    torch = facts.torch
    if torch.error is not None:
        yield Diagnosis(FAIL, "torch", f"cannot be imported: {torch.error}", "reinstall torch")
    elif facts.gpus and torch.cuda is None:
        yield Diagnosis(
            FAIL, "torch", "built without CUDA, but the plan uses GPUs", "install a CUDA build: pytorch.org"
        )
    elif facts.gpus:
        yield _cuda_finding(facts)
        if not torch.available:
            yield Diagnosis(FAIL, "torch", "torch.cuda.is_available() is false", "check nvidia-smi and the driver")
        elif missing := [gpu for gpu in facts.gpus if not _has_kernels(torch.architectures, gpu)]:
            major, minor = missing[0].compute_capability
            what = f"no kernels for {missing[0].name} (sm_{major}{minor}) in this build of torch"
            yield Diagnosis(FAIL, "torch", what, "install a build of torch for a newer CUDA")


def _cuda_finding(facts: Facts) -> Diagnosis:
    """Compare torch's CUDA with the driver's: the major version must not be newer than the driver's.

    With a newer minor version than the driver's, programs run, but without PTX compilation.
    """
    torch_cuda, newest = Version(str(facts.torch.cuda)), facts.driver_cuda
    runs = "an unknown CUDA" if newest is None else f"CUDA {newest[0]}.{newest[1]}"
    what = f"torch's CUDA is {facts.torch.cuda}, driver {facts.driver} runs up to {runs}"
    if newest is None or newest >= torch_cuda.release[:2]:
        return Diagnosis(OK, "CUDA", what)
    status = FAIL if newest[0] < torch_cuda.major else WARN
    return Diagnosis(status, "CUDA", what, "update the driver, or install a torch that was built for an older CUDA")


def _has_kernels(architectures: list[str], gpu: GpuUse) -> bool:
    """Whether one of the architectures runs on this GPU.

    Binary code runs on the same major capability with the same or a newer minor one, PTX on every newer GPU.
    """
    major, minor = gpu.compute_capability
    for architecture in architectures:
        kind, _, digits = architecture.rstrip("af").partition("_")
        built = (int(digits[:-1]), int(digits[-1]))
        if built <= (major, minor) and (kind == "compute" or built[0] == major):
            return True
    return False


def check_compiler(facts: Facts) -> Iterator[Diagnosis]:
    """Check the compilers that the ops of this plan need."""
    ops = needed_ops(facts.plan)
    if not ops:
        yield Diagnosis(OK, "compiler", "none needed: the plan uses none of DeepSpeed's ops")
        return
    wanted = f"needed for {', '.join(ops)}"
    if facts.compiler is None:
        yield Diagnosis(FAIL, "compiler", f"no C++ compiler, {wanted}", "apt install g++")
    else:
        yield Diagnosis(OK, "compiler", f"{facts.compiler}, {wanted}")
    if facts.ninja is None:
        yield Diagnosis(FAIL, "ninja", f"not found, {wanted}", "pip install ninja")
    if kernels := [op for op in ops if op in NEED_NVCC]:
        yield _nvcc_finding(facts, kernels)


def _nvcc_finding(facts: Facts, ops: list[str]) -> Diagnosis:
    torch, subject, wanted = facts.torch, "nvcc", f"needed for {', '.join(ops)}"
    fix = f"install the CUDA {torch.cuda} toolkit and set CUDA_HOME, or choose optimizer=adamw_torch"
    if torch.cuda_home is None:
        return Diagnosis(FAIL, subject, f"no CUDA toolkit (CUDA_HOME), {wanted}", fix)
    if torch.nvcc is None:
        return Diagnosis(FAIL, subject, f"no nvcc that runs in {torch.cuda_home}, {wanted}", fix)
    what = f"CUDA {torch.nvcc} in {torch.cuda_home}, {wanted}; torch's CUDA is {torch.cuda}"
    if torch.cuda is not None and Version(torch.nvcc).major == Version(torch.cuda).major:
        return Diagnosis(OK, subject, what)
    return Diagnosis(WARN, subject, what, fix)  # torch does not refuse such a build, but it may fail to compile or load


def check_disk(facts: Facts) -> Iterator[Diagnosis]:
    for folder, free in facts.free_disk.items():
        if free is None:
            fix = "choose others: hydra.run.dir, XDG_CACHE_HOME, offload.nvme_path"
            yield Diagnosis(FAIL, "disk", f"no permission to write to {folder}", fix)
        else:
            what, fix = f"{_gib(free)} free for {folder}", f"free {_gib(FREE_DISK_BYTES)} there"
            yield _enough("disk", free >= FREE_DISK_BYTES, what, fix)


def check_shared_memory(facts: Facts) -> Iterator[Diagnosis]:
    """Check /dev/shm. CPU ranks reduce through it, and NCCL uses it between GPUs without a direct connection."""
    ranks = facts.plan.world_size
    on_cpu = facts.config.hardware.device == "cpu"
    needed = ranks * SHM_COMM_BYTES if on_cpu else NCCL_SHARED_BYTES if ranks > 1 else 0
    free = facts.free_shared_memory or 0
    what = f"{_gib(free)} free in /dev/shm; {ranks} rank{'s' * (ranks > 1)} may take {_gib(needed)}"
    fix = f"docker run --shm-size={-(-needed // GIB)}g, or mount -o remount,size={-(-needed // GIB)}G /dev/shm"
    yield _enough("shared memory", free >= needed, what, fix, FAIL if on_cpu else WARN)


def check_host_memory(facts: Facts) -> Iterator[Diagnosis]:
    """Check whether the plan's offloaded states fit into host memory, pinned blocks included."""
    if "cpu" not in (facts.config.offload.optimizer, facts.config.offload.param):
        return
    rank_bytes = offloaded_rank_bytes(facts)
    if rank_bytes is None:
        yield Diagnosis(WARN, "host memory", "not checked: the model's configuration is on the hub, its size unknown")
        return
    needed = rank_bytes * facts.plan.world_size
    what = f"{_gib(facts.free_host_memory)} free; the offload takes about {_gib(needed)}"
    less = "offload.pin_memory=false (pinned blocks are rounded up), " if _pins(facts) else ""
    yield _enough("host memory", facts.free_host_memory >= needed, what, f"{less}a smaller model, or more RAM")


def check_pinned_memory(facts: Facts) -> Iterator[Diagnosis]:
    """Check the limit of locked memory (ulimit -l).

    CUDA ignores the limit; DeepSpeed's own pinning (NVMe buffers, DS_PIN_MEMORY_BACKEND) obeys it.
    """
    if not _pins(facts):
        return
    rank_bytes = offloaded_rank_bytes(facts)
    if facts.lockable is None:
        yield Diagnosis(OK, "pinned memory", "no limit (ulimit -l)")
    elif rank_bytes is None:
        yield Diagnosis(WARN, "pinned memory", "not checked: the model's configuration is on the hub, its size unknown")
    else:
        what = f"ulimit -l is {_gib(facts.lockable)}; a rank pins about {_gib(rank_bytes)}"
        fix = "ulimit -l unlimited, or docker run --ulimit memlock=-1"
        yield _enough("pinned memory", facts.lockable >= rank_bytes, what, fix, WARN)


def offloaded_rank_bytes(facts: Facts) -> int | None:
    """Estimate the host memory of one rank in bytes; ``None`` if the number of parameters is unknown.

    An offloaded optimizer keeps four fp32 blocks (weights, gradients, two moments: 16 bytes a parameter), an offloaded
    parameter takes 2 bytes more. Torch rounds each pinned block up to a power of two.
    """
    if facts.torch.parameters is None:
        return None
    offload, shard = facts.config.offload, -(-facts.torch.parameters // facts.plan.world_size)
    blocks = [int(4 * shard * offload.ratio)] * 4 if offload.optimizer == "cpu" else []
    blocks += [2 * shard] if offload.param == "cpu" else []
    return sum(1 << (size - 1).bit_length() if _pins(facts) else size for size in blocks if size)


def _pins(facts: Facts) -> bool:
    """Whether the plan pins host memory for offloading. Ranks on a CPU never do."""
    config = facts.config
    offloads = (config.offload.optimizer, config.offload.param) != ("none", "none")
    return offloads and config.offload.pin_memory and config.hardware.device == "cuda"


def check_locks(facts: Facts) -> Iterator[Diagnosis]:
    for lock in facts.removed_locks:
        yield Diagnosis(OK, "build lock", f"removed {lock}, left by a build that was killed: torch waited for it")
    for lock in facts.kept_locks:
        what = f"torch waits for {lock}; its build may run on another machine or in another container"
        yield Diagnosis(WARN, "build lock", what, "if no build runs, remove the file; memlab doctor does after an hour")


def check_hub(facts: Facts) -> Iterator[Diagnosis]:
    if facts.hub == "reached":
        yield Diagnosis(OK, "hub", "reached")
    elif facts.hub == "offline":
        yield Diagnosis(WARN, "hub", "HF_HUB_OFFLINE is set: only files in the cache will be found", "unset it")
    elif facts.hub is not None:
        fix = "set HTTPS_PROXY or HF_ENDPOINT, or fill the cache elsewhere and set HF_HUB_OFFLINE=1"
        yield Diagnosis(FAIL, "hub", f"the plan needs the Hugging Face hub, which does not answer: {facts.hub}", fix)


CHECKS = (
    check_plan,
    check_gpus,
    check_versions,
    check_torch,
    check_compiler,
    check_disk,
    check_shared_memory,
    check_host_memory,
    check_pinned_memory,
    check_locks,
    check_hub,
)


def _enough(subject: str, is_enough: bool, what: str, fix: str, lacking: str = FAIL) -> Diagnosis:
    """Return the finding about something of which there is enough, or which is ``lacking``."""
    return Diagnosis(OK, subject, what) if is_enough else Diagnosis(lacking, subject, what, fix)


def _gib(size: int | None) -> str:
    return "unknown memory" if size is None else in_gib(size)
