"""Format of a trace: the events and the work of one rank at one batch and length, as a shadow run writes them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memlab.files.disk import write_whole
from memlab.predict.trace import events, work_items
from memlab.predict.trace.events import Event
from memlab.predict.trace.work_items import Item


@dataclass(frozen=True)
class Site:
    """Place in the code that made an allocation. ``kind``: the purpose of the memory (trace/memory_kinds.py);
    ``where``: file and line, or the name of the backward node that ran. Empty for small allocations."""

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
    work: list[Item] = field(default_factory=list)  # of the last step
    events_before: list[int] = field(default_factory=list)  # for each item of ``work``: number of events before it
    model_flops: tuple[float, float] | None = None  # of a sample: for each token, for each pair (worker/flops.py)
    unknown: dict[str, str] = field(default_factory=dict)  # quantities that could not be computed -> reason
    assumed: dict[str, int] = field(default_factory=dict)  # line that needed an unknown value -> times
    epochs: list[dict[str, Any]] = field(default_factory=list)  # read ahead: shadow/short_epochs.py
    parameters: int = 0
    trainable_parameters: int = 0
    seconds: float = 0.0  # CPU time of the shadow run, with the start of the engine, which other traces may share

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "events": list(map(events.to_json, self.events)),
            "work": list(map(work_items.to_json, self.work)),
            "sites": list(map(vars, self.sites)),
        }

    def save(self, path: Path) -> None:
        """Write the trace, whole or not at all. Raises :class:`WriteError`, which names ``path``."""
        write_whole(path, json.dumps(self.to_json(), separators=(",", ":")).encode())

    @classmethod
    def load(cls, path: Path) -> "Trace":
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values["events"] = [events.from_json(*event) for event in values["events"]]
        values["work"] = [work_items.from_json(*item) for item in values["work"]]
        values["sites"] = [Site(**{**site, "shape": tuple(site["shape"])}) for site in values["sites"]]
        return cls(**values)
