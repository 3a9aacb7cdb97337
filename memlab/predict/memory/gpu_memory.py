"""Memory of one GPU of the hardware entry: how much torch's allocator can have of it."""

from dataclasses import dataclass

from memlab.core.config import Config
from memlab.core.sizes import GIB, UNLIMITED
from memlab.predict import allocator
from memlab.predict.constants import outside_the_allocator


@dataclass(frozen=True)
class GpuMemory:
    """Sizes in bytes. ``total``: the whole memory, ``None`` if not known; ``outside``: the memory used outside the
    allocator; ``capacity``: the most that the allocator can reserve."""

    total: int | None
    outside: int
    capacity: int


def gpu_memory(config: Config) -> GpuMemory:
    """Return the memory of one GPU. The allocator can have what is not used outside, or ``per_process_memory_fraction``
    of the whole if that is less."""
    hardware = config.hardware
    outside = outside_the_allocator(hardware.gpu, hardware.gpus)
    if not hardware.memory_gib:
        return GpuMemory(None, outside, UNLIMITED)
    total = int(hardware.memory_gib * GIB)
    allowed = int(total * allocator.parse(config.allocator.conf).memory_fraction)
    return GpuMemory(total, outside, min(total - outside, allowed))
