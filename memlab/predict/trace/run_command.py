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
from memlab.predict.trace.simulation import VARIABLE, Node, Simulation, refusal
from memlab.predict.trace.trace_format import Trace

BOOTSTRAP = Path(__file__).with_name("shadow") / "bootstrap"
"""Folder of the bootstrap, for PYTHONPATH: it holds nothing else."""

LOG = "command.log"
"""Output of the command, in the run folder."""

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
    """A command that has ended: its exit code, its last words where it failed, and the traces of its ranks."""

    returncode: int
    last_words: str
    traces: Mapping[int, Trace]


def simulate(
    words: Sequence[str],
    node: Node,
    folder: Path,
    steps: int | None,
    environ: Mapping[str, str],
    other_end: str | None = None,
    run: Callable[..., subprocess.CompletedProcess] = subprocess.run,
) -> Simulated:
    """Run a command on simulated GPUs.

    ``folder`` receives the output of the command, and the files of its ranks and their traces. ``environ``: the
    variables that the command would get. ``steps`` and ``other_end``: see :class:`Simulation`. ``run``: runs the
    command as ``subprocess.run`` does, for example in a sandbox. Raises :class:`SimulationError` where no process of
    the command could simulate GPUs.
    """
    own = _emptied(folder)
    Simulation(str(folder), node, steps, time.time(), other_end).write(own)
    try:
        with (folder / LOG).open("wb") as output:
            variables = _variables(environ, own)
            done = run(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=variables)
    finally:
        redact_file(folder / LOG)
    why = refusal(own) or (NOT_SIMULATED if done.returncode == 0 and not install.has_loaded(folder) else None)
    native.keep(own, cache_folder("native"))
    install.remove(folder)
    if why:
        raise SimulationError(why)
    return Simulated(done.returncode, last_exception(folder / LOG) if done.returncode else "", traces_in(folder))


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
