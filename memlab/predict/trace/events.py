"""Trace of a shadow run: every allocation, free and use by a side stream, in order. Plain data, no torch."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memlab.files.disk import write_whole
from memlab.predict.trace.work_items import Item

ALLOC, FREE, USE, SYNC, EMPTY, PHASE, HOST_ALLOC, HOST_FREE, START = range(9)
"""The kinds of events. The fields after the kind:

ALLOC      key, requested bytes, stream, site    (on the device; 0 bytes get no block); for the buffer of a sum, the
           fields of shadow/reductions.Reduction follow, which determine the bytes
FREE       key, requests until the block can be reused    (the latter only for blocks that side streams used: lags.py)
USE        key, stream                           (``Tensor.record_stream``)
SYNC       requests                              (the host waited for all work of the first so many ALLOCs)
EMPTY                                            (``torch.cuda.empty_cache``)
PHASE      index in ``Trace.phases``
HOST_ALLOC key, requested bytes, 1 if pinned
HOST_FREE  key
START                                            (peaks are reset: the first step of a point begins)
"""

Event = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """Place in the code that made an allocation. ``kind``: the purpose of the memory (shadow/kinds.py); ``where``: file
    and line, or the name of the backward node that ran. Empty for small allocations."""

    kind: str
    op: str
    where: str
    function: str
    module: str
    shape: tuple[int, ...]


@dataclass
class Trace:
    """The events of one rank at one (batch, tokens), from the building of the model to the end of the last step."""

    rank: int
    world_size: int
    micro: int = 0
    tokens: int = 0
    events: list[Event] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # index of the first event of each optimizer step
    smooth_from: int | None = 1  # tokens in a batch from which the size formulas hold (interpolate.py); None: never
    work: list[Item] = field(default_factory=list)  # work of the last step (work.py)
    places: list[int] = field(default_factory=list)  # for each item of the work: number of events before it
    model_flops: tuple[float, float] | None = None  # of a sample: for each token, for each pair (worker/flops.py)
    unknown: dict[str, str] = field(default_factory=dict)  # figures that could not be computed -> reason
    parameters: int = 0
    trainable_parameters: int = 0
    seconds: float = 0.0  # CPU time of the shadow run, with the start of the engine, which other traces may share

    def save(self, path: Path) -> None:
        """Write the trace, whole or not at all. Raises :class:`WriteError`, which names ``path``."""
        # Not asdict: it copies every event.
        write_whole(path, json.dumps(vars(self), default=vars, separators=(",", ":")).encode())

    @classmethod
    def load(cls, path: Path) -> "Trace":
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values["events"] = [tuple(event) for event in values["events"]]
        values["work"] = [tuple(item) for item in values["work"]]
        values["sites"] = [Site(**{**site, "shape": tuple(site["shape"])}) for site in values["sites"]]
        return cls(**values)
