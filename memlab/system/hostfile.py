"""DeepSpeed's hostfile: the nodes of a run, one ``<host> slots=<ranks>`` a line."""

import re
from pathlib import Path

from memlab.core.errors import ConfigError
from memlab.files.disk import explained


def read_hostfile(path: str) -> dict[str, int]:
    """Read host -> slots, in the order of the file. Raises :class:`ConfigError` for a file that DeepSpeed refuses."""
    with explained(ConfigError, path, "hardware.hostfile="):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    slots: dict[str, int] = {}
    for line in map(str.strip, lines):
        if not line or line.startswith("#"):
            continue
        match = re.match(r"(\S+)\s+slots=(\d+)", line)
        if not match or match[1] in slots:
            raise ConfigError(
                f"The hostfile {path} has a bad line: {line!r}. Write each host once, as '<host> slots=<ranks>'."
            )
        slots[match[1]] = int(match[2])
    return slots
