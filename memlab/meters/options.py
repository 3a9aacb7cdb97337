"""Options that the parent passes to the ranks of a command, in a file beside the bootstrap."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "options.json"

PROFILER_WARMUP, PROFILED_STEPS = 1, 2
"""Steps that warm torch's profiler up, and the steps after them that it keeps."""

PROFILER = "torch's profiler"
"""Place of its failure in ``meter_errors`` of a rank's file."""


@dataclass(frozen=True)
class MeterOptions:
    folder: str = ""  # the run folder
    steps: int | None = None  # end after this many optimizer steps
    explain: int | None = None  # record torch's memory history until the end of this optimizer step
    started_at: float | None = None  # time.time() when the parent started the command
    explain_ranks: tuple[int, ...] = ()  # ranks that record it; empty: all
    profile: int | None = None  # run torch's profiler in the steps after this optimizer step
    probes_host: bool = True  # tell at the end how fast this host is
    explain_oom: bool = False  # record the last actions after the step of ``explain``, for an out-of-memory
    protocol: str = "cold"  # of the peaks: from the start of the process
    warmup: int | None = None  # steps that warm up, timed even while they are recorded; None: the first one

    def profiles(self, step: int) -> bool:
        """Whether torch's profiler runs in an optimizer step, from 1: then it takes longer."""
        return self.profile is not None and 0 < step - self.profile <= PROFILER_WARMUP + PROFILED_STEPS

    def explains(self, rank: int) -> bool:
        """Whether a rank records torch's memory history."""
        return bool(self.explain) and rank in (self.explain_ranks or (rank,))

    def write(self, folder: str | os.PathLike) -> None:
        (Path(folder) / FILE).write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def read(cls, folder: str | os.PathLike) -> "MeterOptions":
        return cls(**json.loads((Path(folder) / FILE).read_text("utf-8")))
