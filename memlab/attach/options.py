"""Options that the parent passes to the ranks of a command, in a file beside the bootstrap."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "options.json"


@dataclass(frozen=True)
class Options:
    folder: str  # the run folder
    steps: int | None = None  # end after this many optimizer steps
    explain: int | None = None  # record torch's memory history until the end of this optimizer step
    started_at: float | None = None  # time.time() when the parent started the command

    def write(self, folder: str | os.PathLike) -> None:
        (Path(folder) / FILE).write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def read(cls, folder: str | os.PathLike) -> "Options":
        return cls(**json.loads((Path(folder) / FILE).read_text("utf-8")))
