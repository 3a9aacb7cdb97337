"""A command on simulated GPUs: started once, as it is, with a bootstrap in each of its Python processes.

The launcher of the command starts the ranks with its own options and its own environment. In a rank, torch finds
simulated GPUs (trace/shadow/script.py). The first rank and the last one run: rank 0 logs and saves, and all others are
alike. The ranks between them end at once. The command's own interpreter and torch are used, so its environment needs
neither memlab nor what memlab needs.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memlab.attach import install
from memlab.core.errors import MemlabError
from memlab.files.cache_folder import cache_folder
from memlab.files.redact_file import redact_file
from memlab.predict.trace.shadow import native
from memlab.predict.trace.shadow_process import last_exception
from memlab.predict.trace.simulation import VARIABLE, Node, Simulation, lines_where_time_ended, refusal
from memlab.predict.trace.trace_format import Trace

BOOTSTRAP = Path(__file__).with_name("shadow") / "bootstrap"
"""Folder of the bootstrap, for PYTHONPATH: it holds nothing else."""

LOG = "command.log"
"""Output of the command, in the run folder."""

TIMED_OUT = 124
"""Exit code of a command whose time is over, as of timeout(1)."""

TELL_S = 2.0
"""Seconds in which processes tell where they are, after the time is over."""

_TRACES, _FILES_OF_RANKS = "rank*.trace.json", "rank*.json*"

NOT_SIMULATED = (
    "nothing was predicted: no Python process of the command imported torch with memlab's bootstrap, which comes "
    "through PYTHONPATH. python -I, -E and -S ignore it, and containers and ssh may drop it: leave the option out, or "
    "pass PYTHONPATH on"
)


class SimulationError(MemlabError):
    """The command's interpreter cannot simulate GPUs, or no process of the command did."""


@dataclass(frozen=True)
class Simulated:
    """A command that has ended: its exit code, its last words where it failed, and the traces of its ranks.

    ``waited_at``: the lines of the script at which processes were when their time was over; ``None``: it was not over.
    """

    returncode: int
    last_words: str
    traces: Mapping[int, Trace]
    waited_at: Sequence[str] | None = None


def simulate(
    words: Sequence[str],
    node: Node,
    folder: Path,
    steps: int | None,
    environ: Mapping[str, str],
    other_end: str | None = None,
    timeout_s: float | None = None,
    run: Callable[..., subprocess.CompletedProcess] = subprocess.run,
) -> Simulated:
    """Run a command on simulated GPUs.

    ``folder`` receives the output of the command, and the files of its ranks and their traces. ``environ``: the
    variables that the command would get. ``steps``, ``other_end`` and ``timeout_s``: see :class:`Simulation`. ``run``:
    runs the command as ``subprocess.run`` does, for example in a sandbox. Raises :class:`SimulationError` where no
    process of the command could simulate GPUs.
    """
    own = _emptied(folder)
    simulation = Simulation(str(folder), node, steps, time.time(), other_end, timeout_s)
    simulation.write(own)
    waited_at = None
    try:
        with (folder / LOG).open("wb") as output:
            variables = _variables(environ, own)
            limit = None if timeout_s is None else timeout_s + TELL_S
            options = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT, "timeout": limit}
            returncode = run(words, env=variables, **options).returncode
    except subprocess.TimeoutExpired:
        returncode, waited_at = TIMED_OUT, lines_where_time_ended(own)
    finally:
        redact_file(folder / LOG)
    why = refusal(own) or (NOT_SIMULATED if returncode == 0 and not install.has_loaded(folder) else None)
    native.keep(own, cache_folder("native"))
    install.remove(folder)
    if why:
        raise SimulationError(why)
    last_words = last_exception(folder / LOG) if returncode else ""
    return Simulated(returncode, last_words, traces_in(folder), waited_at)


def traces_in(folder: Path) -> dict[int, Trace]:
    """Read the traces that the ranks of a simulated command left in a run folder, by rank."""
    return {trace.rank: trace for trace in map(Trace.load, folder.glob(_TRACES))}


def _emptied(folder: Path) -> Path:
    """Remove what an earlier command left in the run folder. Returns the folder for what memlab's processes share."""
    own = folder / install.FOLDER
    shutil.rmtree(own, ignore_errors=True)
    for left in folder.glob(_FILES_OF_RANKS):
        left.unlink()
    own.mkdir()
    return own


def _variables(environ: Mapping[str, str], own: Path) -> dict[str, str]:
    """Variables of the command: the bootstrap is first on PYTHONPATH, and real GPUs are hidden."""
    return {
        **environ,
        VARIABLE: str(own),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(BOOTSTRAP), environ.get("PYTHONPATH")])),
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cuda",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
