"""A few lines of a training script, run as one rank on simulated GPUs."""

import os
from pathlib import Path

from memlab.predict.trace.parse_command import Command, Node, trace_rank
from memlab.predict.trace.trace_format import Trace

NODE = Node("NVIDIA H200", 2, 139 << 30)


def run(folder: Path, lines: str, launcher: str = "python", arguments: tuple[str, ...] = ()) -> tuple[Trace, str]:
    """Return the trace of the script, and what it printed."""
    script = folder / "script.py"
    script.write_text(lines)
    return run_script(folder, script, launcher, arguments)


def run_script(folder: Path, script: Path, launcher: str, arguments: tuple[str, ...]) -> tuple[Trace, str]:
    trace = run_command(folder, Command(launcher, str(script), arguments))
    return trace, (folder / "rank0.log").read_text()


def run_command(folder: Path, command: Command, rank: int = 0) -> Trace:
    return trace_rank(command, rank, NODE, folder, None, os.environ)
