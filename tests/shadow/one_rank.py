"""A few lines of a training script, run as one rank on simulated GPUs."""

import os
import sys
from pathlib import Path

from memlab.core.errors import ShadowError
from memlab.prediction.run_command import LOG, simulate
from memlab.simulator.simulation import Node
from memlab.simulator.trace.trace_format import Trace

NODE = Node("NVIDIA H200", 2, 139 << 30)

OF_A_LAUNCHER = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
"""Variables of two ranks. The port is never opened."""


def run(folder: Path, lines: str, arguments: tuple[str, ...] = ()) -> tuple[Trace, str]:
    """Return the trace of the script, and what it printed."""
    script = folder / "script.py"
    script.write_text(lines)
    return run_script(folder, script, arguments)


def run_script(
    folder: Path, script: Path, arguments: tuple[str, ...] = (), rank: int | None = None
) -> tuple[Trace, str]:
    """Run a script alone, or as one of two ranks, with the variables that a launcher sets for it.

    Raises :class:`ShadowError` with the exception that ended the script.
    """
    launched = {} if rank is None else {**OF_A_LAUNCHER, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    words = [sys.executable, str(script), *arguments]
    simulated = simulate(words, NODE, folder, None, {**os.environ, **launched})
    if simulated.returncode:
        raise ShadowError(simulated.last_words)
    return simulated.traces[rank or 0], (folder / LOG).read_text()
