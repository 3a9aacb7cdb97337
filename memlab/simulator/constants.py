"""Constants that no trace shows, such as the memory that libraries take, each with its source.

``GPU_MODELS`` holds the properties of each GPU model. Each "measured" names the GPU or the runs; nothing here was
fitted to the peaks that predictions are judged by.
"""

import re
from dataclasses import dataclass

from memlab.core.sizes import MIB


@dataclass(frozen=True)
class GpuModel:
    """Properties of a GPU model. ``capability``: CUDA's compute capability; ``resident_threads``: threads of one
    multiprocessor; ``cublas_workspace``: bytes."""

    capability: tuple[int, int]
    multiprocessors: int
    resident_threads: int
    cublas_workspace: int
    prefers_cudnn_attention: bool


# ``cublas_workspace``: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize(): 32 MiB on Hopper and
# data-center Blackwell, else :4096:2:16:8 (two of 4 MiB, eight of 16 KiB). It is a block of the caching allocator, held
# for each (handle, stream); every thread has a handle of its own, so forward (main thread) and backward (autograd's)
# make two.
_BEFORE_HOPPER = 2 * 4 * MIB + 8 * 16 * 1024
_SINCE_HOPPER = 32 * MIB

CUBLASLT_WORKSPACE = MIB
"""Bytes that cublasLt keeps beside cuBLAS, as cuBLAS does: parseCUDABlasLtWorkspaceSize() in the same file. Seen with
torch 2.11 (an allocation of getCUDABlasLtWorkspace() on an H100, and 1 MiB in each measured model with biases). The
documentation of torch 2.13 (torch.backends.cuda.cublaslt_workspace_size) says that the two share one by default."""

# ``prefers_cudnn_attention``: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention():
# compute capability 9.0, 10.0 and 10.3 with cuDNN above 9.15.0, which the wheels of PyTorch 2.11 for CUDA 13 are the
# first to ship.
# ``multiprocessors``: NVIDIA's architecture white papers and data sheets, of the fastest board of that name.
# ``resident_threads``: CUDA C++ programming guide, technical specifications by compute capability.
GPU_MODELS = {
    "T4": GpuModel((7, 5), 40, 1024, _BEFORE_HOPPER, False),
    "A100": GpuModel((8, 0), 108, 2048, _BEFORE_HOPPER, False),
    "A10": GpuModel((8, 6), 72, 1536, _BEFORE_HOPPER, False),
    "A10G": GpuModel((8, 6), 72, 1536, _BEFORE_HOPPER, False),
    "RTX 3090": GpuModel((8, 6), 82, 1536, _BEFORE_HOPPER, False),
    "L40S": GpuModel((8, 9), 142, 1536, _BEFORE_HOPPER, False),
    "RTX 4090": GpuModel((8, 9), 128, 1536, _BEFORE_HOPPER, False),
    "H100": GpuModel((9, 0), 132, 2048, _SINCE_HOPPER, True),
    "H200": GpuModel((9, 0), 132, 2048, _SINCE_HOPPER, True),
    "GH200": GpuModel((9, 0), 132, 2048, _SINCE_HOPPER, True),
    "B200": GpuModel((10, 0), 148, 2048, _SINCE_HOPPER, True),
    "GB200": GpuModel((10, 0), 148, 2048, _SINCE_HOPPER, True),
}
"""Words of the name in NVML -> properties."""

TAKEN_FOR = "H100"
"""Model that stands for every GPU with an unknown name: of the newer kind, whose workspaces are larger."""

HOST_PROCESS_BYTES = 2043 * MIB
"""Resident set of a rank whose tensors are all on the device. Measured: ``host_peak_bytes`` of the stage 0 run in
results/qwen15_05b_1xH200 (CUDA wheel of torch 2.11, transformers 5.17)."""

PINNED_MINIMUM = 512
"""Torch's pinned host allocator (c10, CachingHostAllocator) rounds every block up to a power of two, of at least
this."""

TF32_SHARE = 0.5
"""Peak of tensor cores in TF32 as a share of their peak in bf16, the same in all datasheets: A100 156 of 312, H100 and
H200 494.5 of 989.5, L40S 183 of 362, RTX 4090 82.6 of 165.2 TFLOPS. Older GPUs have no
TF32: there a time by this peak is still a lower bound."""

HOST_LINK_SHARES = {1: 1.0, 2: 0.98, 4: 0.79}
"""Number of GPUs of a node that copy to or from the host at once -> speed of each, as a share of its speed alone.
Measured on up to four H200s: results/host_links_4xH200, the median of pinned, pageable and converting copies of 8 to
512 MiB."""


def gpu_model(gpu: str) -> GpuModel:
    """Return the model of a GPU by its name in NVML; :data:`TAKEN_FOR` where the name is unknown."""
    return GPU_MODELS[_model_name(gpu) or TAKEN_FOR]


def unknown_model(gpu: str) -> str | None:
    """Return why the properties of a GPU are not known, and what is taken instead; ``None`` if they are known."""
    if _model_name(gpu):
        return None
    return f"memlab knows no properties of {gpu or 'a GPU without a name'}: predicted with those of an {TAKEN_FOR}"


def _model_name(gpu: str) -> str | None:
    """Find the key of :data:`GPU_MODELS` whose words the name contains: an L40 is no L40S, and an A1000 no A100."""
    return next((name for name in GPU_MODELS if re.search(rf"\b{name}\b", gpu)), None)


def host_link_share(gpus: int) -> float:
    """Return the share for a node of ``gpus``: the one measured with the next larger number, or with the largest."""
    enough = [measured for measured in HOST_LINK_SHARES if measured >= gpus]
    return HOST_LINK_SHARES[min(enough, default=max(HOST_LINK_SHARES))]


def pinned_block(nbytes: int) -> int:
    """Return the bytes of page-locked host memory that a request of ``nbytes`` takes."""
    return max(PINNED_MINIMUM, 1 << (nbytes - 1).bit_length())
