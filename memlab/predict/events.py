"""What a shadow run leaves behind: every allocation, free and use by another stream, in order. Plain data, no torch."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memlab.disk import write_whole
from memlab.predict.work import Item

ALLOC, FREE, USE, SYNC, EMPTY, PHASE, HOST_ALLOC, HOST_FREE, START = range(9)
"""The kinds of events. What follows the kind in an event:

ALLOC      key, bytes asked for, stream, site    (on the device; none asked for: none taken), and, where a sum asks,
           the fields of shadow/reductions.Reduction, which the bytes follow from
FREE       key, after how many requests it is free indeed    (the latter where USEs say it: lags.py)
USE        key, stream                           (``Tensor.record_stream``)
SYNC       requests                              (the host waited for what it had asked for after so many ALLOCs)
EMPTY                                            (``torch.cuda.empty_cache``)
PHASE      index in ``Trace.phases``
HOST_ALLOC key, bytes asked for, 1 if pinned
HOST_FREE  key
START                                            (the run's peaks begin anew: first step)
"""

Event = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """Where an allocation was made: ``kind`` is what it is for (shadow/kinds.py), ``where`` a file and line, or the
    name of the backward node that ran. Empty for small allocations."""

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
    steps: list[int] = field(default_factory=list)  # the event that each optimizer step begins with
    smooth_from: int | None = 1  # tokens in a batch from which sizes grow as interpolate.py says; None: they never do
    work: list[Item] = field(default_factory=list)  # of the last step, what it asks of the machine
    places: list[int] = field(default_factory=list)  # of each item of the work: how many events were before it
    model_flops: tuple[float, float] | None = None  # of a sample: for each token, for each pair (worker/flops.py)
    unknown: dict[str, str] = field(default_factory=dict)  # figures that could not be told, each with the reason
    parameters: int = 0
    trainable_parameters: int = 0
    seconds: float = 0.0  # of CPU time that it took, with the start of its engine, which others may have shared

    def save(self, path: Path) -> None:
        """Write it, whole or not at all. Raises :class:`WriteError`, which names ``path``."""
        # Not asdict: it copies every event.
        write_whole(path, json.dumps(vars(self), default=vars, separators=(",", ":")).encode())

    @classmethod
    def load(cls, path: Path) -> "Trace":
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values["events"] = [tuple(event) for event in values["events"]]
        values["work"] = [tuple(item) for item in values["work"]]
        values["sites"] = [Site(**{**site, "shape": tuple(site["shape"])}) for site in values["sites"]]
        return cls(**values)
