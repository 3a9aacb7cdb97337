"""Memory of one GPU of the hardware entry: how much torch's allocator can have of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from memlab.core.config import Config
from memlab.core.sizes import GIB, UNLIMITED
from memlab.predict import allocator
from memlab.predict.memory.outside import outside_parts
from memlab.predict.outside.fit import sizes_from
from memlab.predict.outside.parts import outside_bytes
from memlab.predict.trace.trace_format import Trace


@dataclass(frozen=True)
class GpuMemory:
    """Sizes in bytes. ``total``: the whole memory, ``None`` if not known; ``outside``: the memory used outside the
    allocator; ``capacity``: the most that the allocator can reserve."""

    total: int | None
    outside: int
    capacity: int


def gpu_memory(config: Config, traces: Iterable[Trace]) -> GpuMemory:
    """Return the memory of one GPU for the rank with the most outside the allocator. The allocator can have what is not
    used outside, or ``per_process_memory_fraction`` of the whole if that is less.

    ``traces``: of the ranks, or of one rank's points.
    """
    hardware = config.hardware
    sizes = sizes_from(config.predict.outside)
    outside = max(outside_bytes(outside_parts(trace, sizes)) for trace in traces)
    if not hardware.memory_gib:
        return GpuMemory(None, outside, UNLIMITED)
    total = int(hardware.memory_gib * GIB)
    allowed = int(total * allocator.parse(config.allocator.conf).memory_fraction)
    return GpuMemory(total, outside, min(total - outside, allowed))
