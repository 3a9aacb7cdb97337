"""Sizes of what lies outside torch's allocator, as they were measured on one GPU."""

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from memlab.core.sizes import MIB
from memlab.files.json_file import read_json

PIECE = 2 * MIB
"""The driver takes memory in pieces of this size, as the figures in results/explain/readings.csv show."""

SHIPPED = Path(__file__).parent / "sizes.json"
"""Sizes of memlab's own measurements, which ``python -m memlab.predict.outside.fit`` makes from results/."""


@dataclass(frozen=True)
class Size:
    """``nbytes``: the median of ``readings`` readings, of which ``alike`` are within 4 MiB."""

    nbytes: int
    readings: int
    alike: int


@dataclass(frozen=True)
class NcclSizes:
    """Sizes of NCCL in bytes. ``library``: once in a process. ``communicator``: of each group that is connected.
    ``collective``: with the first collective of a group; where each group had one, half of both. ``ranks``: that they
    were computed from. ``error``: the largest difference to the sum of a rank's readings."""

    library: int
    communicator: int
    collective: int
    ranks: int
    error: int


@dataclass(frozen=True)
class Sizes:
    """``gpu``, ``versions``, ``source``: where they were measured. ``stream``: of the first stream of high priority,
    which NCCL's own is, too. ``nccl_alone``: with groups of one rank, ``nccl``: of several ranks of a node."""

    gpu: str
    versions: str
    source: str
    context: Size
    first_kernel: Size
    stream: Size
    handle_in_forward: Size
    handle_in_backward: Size
    attention_forward: Size
    attention_backward: Size
    further_kernels: Size
    nccl_alone: NcclSizes
    nccl: NcclSizes

    @property
    def provenance(self) -> str:
        return f"measured in {self.source}" + (f" ({self.gpu})" if self.gpu else "")


@cache
def shipped() -> Sizes:
    """Return the sizes of memlab's own measurements."""
    values = read_json(SHIPPED)
    kinds: dict[str, Any] = {field.name: field.type for field in fields(Sizes)}
    found: dict[str, Any] = {
        name: kind(values[name]) if kind is str else kind(**values[name]) for name, kind in kinds.items()
    }
    return Sizes(**found)
