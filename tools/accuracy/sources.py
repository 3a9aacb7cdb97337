"""Table of docs/accuracy.md: what a trace does not show, its value in a prediction, and the source of that value."""

from memlab.core.sizes import MIB
from memlab.simulator.constants import HOST_PROCESS_BYTES

SOURCES = (
    (
        "cuBLAS workspaces",
        "32 MiB (Hopper and later) or 8.1 MiB for each handle and stream",
        "PyTorch's source, `CublasHandlePool.cpp`",
    ),
    (
        "scratch of attention's backward",
        "by shape",
        "flash: PyTorch's and flash-attn's source, `flash_api.cpp`; cuDNN: memory histories of an H200, three shapes",
    ),
    (
        "temporaries of a softmax (eager attention, and where CUDA has no fused kernel)",
        "by shape",
        "PyTorch's source, `SoftMax.cu` and `attention.cpp`",
    ),
    (
        "partial sums of a sum over rows (gradients of biases and of norms' weights)",
        "by shape, multiprocessors and their threads",
        "PyTorch's source, `Reduce.cuh`",
    ),
    ("temporaries of a product with weights in 4 bits", "by shape", "bitsandbytes' source, `backends/cuda/ops.py`"),
    (
        "where segments lie: of free blocks of equal size, the allocator takes the lowest",
        "in regions of 32 MiB or more, each below those before, after a first one of 416 MiB",
        "measured: 361 allocations on an H100 (`address_space_1xH100`)",
    ),
    (
        "when a block that a side stream uses is free again",
        "when the GPU reaches that point, by the clocks of the predicted step; the host runs at most 1,024 "
        "kernels ahead. Of several ranks, the highest has a host that runs ahead by the median error of step "
        "times",
        "the costs of the step time, which are fitted to step times and never to memory (docs/step_time.md). "
        "The record has the lowest and the highest reserved memory (`peak_reserved_range_bytes`): blocks free"
        " at once, blocks free only when the host waits, and a host twice as fast",
    ),
    (
        "what lies outside the allocator: CUDA context, communicators of NCCL, cuBLAS handles, code of kernels",
        "a sum of the parts that the run has, by its trace",
        "measured: 36 ranks of `explain`, reading by reading (`memlab/simulator/outside/sizes.json`). Beside the "
        "allocator: they move the verdict, and no figure of this page",
    ),
    (
        "the process on the host",
        f"{HOST_PROCESS_BYTES // MIB:,} MiB",
        "measured: the stage 0 record of `qwen15_05b_1xH200`, which is judged here, too; it moves host memory alone",
    ),
)
"""(What a trace does not show, value, source)."""
