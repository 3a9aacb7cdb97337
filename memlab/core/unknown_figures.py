"""Optional figures: if one cannot be computed, the run goes on without it and records the reason."""

from collections.abc import Iterator
from contextlib import contextmanager

MODEL_FLOPS = "model_flops_per_step"
GPU_MODEL = "gpu_model"  # properties of the GPU that a prediction needs
WORK = "work"  # FLOPs, bytes and kernels of a predicted step, which give its time


@contextmanager
def left_out(figure: str, unknown: dict[str, str]) -> Iterator[None]:
    """Run the block. If an exception ends it, note in ``unknown`` why ``figure`` is missing, and go on."""
    try:
        yield
    except Exception as error:  # of any kind: the other figures of the run do not depend on this one
        unknown[figure] = f"{type(error).__name__}: {error}"
