"""A command on simulated GPUs: started once, as it is, with a bootstrap in each of its Python processes.

The launcher of the command starts the ranks with its own options and its own environment. In a rank, torch finds
simulated GPUs (simulator/rank/script.py). The first rank and the last one run: rank 0 logs and saves, and all others
are alike. The ranks between them end at once, unless ranks differ (simulator/rank/point_to_point.py). The command's own
interpreter and torch are used, so its environment needs neither memlab nor what memlab needs.

Its processes share one folder with memlab, the only one in which they can change anything: they read of the simulated
GPUs there, and leave their files. memlab writes nothing there while they run. When they have ended, it copies the files
that it expects into the run folder, and opens them as files of a stranger (memlab/files/regular_file.py).
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from memlab.core.errors import MemlabError
from memlab.files.redact_file import redact_file
from memlab.files.regular_file import create
from memlab.meters import install
from memlab.runs.folder import RunFolder
from memlab.runs.step_rows import count_rows
from memlab.simulator import simulation
from memlab.simulator.last_exception import last_exception
from memlab.simulator.rank import native
from memlab.simulator.rank.launchers import ALL_RANKS
from memlab.simulator.trace.split_by_gpu import split_by_gpu
from memlab.simulator.trace.trace_format import Trace, Traces, trace_of_command
from memlab.system.deadman import remove_folder

LOG = "command.log"
"""Output of the command, in the run folder."""

ITS_OUTPUT = "; the script's output is in "
"""End of the reason of a run that failed, before the path of the log."""

TIMED_OUT = 124
"""Exit code of a command whose time is over, as of timeout(1)."""

TELL_S = 2.0
"""Grace period after the timeout, in seconds, in which processes report their lines."""

_TRACES = "rank*.trace.json"

NOT_SIMULATED = (
    "nothing was predicted: no Python process of the command imported torch with memlab's bootstrap, which comes "
    "through PYTHONPATH. python -I, -E and -S ignore it, and containers and ssh may drop it: leave the option out, or "
    "pass PYTHONPATH on"
)


class SimulationError(MemlabError):
    """The command's interpreter cannot simulate GPUs, or no process of the command did."""


class RanksDiffer(MemlabError):
    """The ranks of the command differ: start it anew, with the variable launchers.ALL_RANKS."""


@dataclass(frozen=True)
class Simulated:
    """A command that has ended: its exit code, its last words where it failed, and the traces of its ranks.

    ``waited_at``: the lines of the script at which processes were when their time was over; ``None``: it was not over.
    """

    returncode: int
    last_words: str
    traces: Traces
    waited_at: Sequence[str] | None = None


def simulate(
    words: Sequence[str],
    node: simulation.Node,
    folder: Path,
    steps: int | None,
    environ: Mapping[str, str],
    other_end: str | None = None,
    timeout_s: float | None = None,
    run: Callable[..., subprocess.CompletedProcess] = subprocess.run,
) -> Simulated:
    """Run a command on simulated GPUs.

    ``folder``, the run folder, receives the output of the command, the files of its ranks and their traces.
    ``environ``: the variables that the command would get. ``steps``, ``other_end`` and ``timeout_s``: see
    :class:`Simulation`. ``run``: runs the command as ``subprocess.run`` does, for example in a sandbox. Raises
    :class:`SimulationError` where no process of the command could simulate GPUs, and :class:`RanksDiffer`.
    """
    run_folder = RunFolder(folder)
    own = run_folder.empty_folder(install.FOLDER)
    simulation.Simulation(node, steps, time.time(), other_end, timeout_s).write(own)
    run_folder.drop_simulated()
    try:
        limit = None if timeout_s is None else timeout_s + TELL_S
        command = partial(run, words, env=_variables(environ, own), timeout=limit)
        returncode, waited_at = _run(command, own, folder / LOG)
        if simulation.want_all_ranks(own) and ALL_RANKS not in environ:
            raise RanksDiffer
        run_folder.take_simulated(own)
        why = simulation.refusal(own) or (NOT_SIMULATED if returncode == 0 and not install.has_loaded(folder) else None)
        native.keep(own, native.of_commands())
    finally:
        with suppress(OSError):  # files of another user
            remove_folder(own)
    if why:
        raise SimulationError(why)
    return Simulated(returncode, last_exception(folder / LOG) if returncode else "", traces_in(folder), waited_at)


def _run(command: Callable[..., subprocess.CompletedProcess], own: Path, log: Path) -> tuple[int, Sequence[str] | None]:
    """Run the command of :func:`simulate`. Returns its exit code and ``Simulated.waited_at``."""
    try:
        with create(log) as output:
            return command(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT).returncode, None
    except subprocess.TimeoutExpired:
        return TIMED_OUT, simulation.lines_where_time_ended(own)
    finally:
        redact_file(log)


def steps_done(folder: Path) -> list[int]:
    """Return how many optimizer steps each rank has done; ``folder``: the run folder of a command, which may run."""
    places = (RunFolder(folder / install.FOLDER), RunFolder(folder))
    found = ([place.step_rows(rank) for rank in place.ranks_with_rows()[: simulation.MOST_RANKS]] for place in places)
    return list(map(count_rows, next(filter(None, found), [])))


def traces_in(folder: Path) -> dict[int, Trace]:
    """Read the traces that the ranks of a simulated command left in a run folder, by rank. Each GPU of a process counts
    as a rank (trace/split_by_gpu.py)."""
    whole = map(trace_of_command, sorted(folder.glob(_TRACES)))
    return {trace.rank: trace for trace in chain.from_iterable(map(split_by_gpu, whole))}


def _variables(environ: Mapping[str, str], own: Path) -> dict[str, str]:
    """Return the variables of the command's processes: the bootstrap is first on PYTHONPATH."""
    return {
        **simulation.environment(environ),
        simulation.VARIABLE: str(own),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(simulation.BOOTSTRAP), environ.get("PYTHONPATH")])),
        "TOKENIZERS_PARALLELISM": "false",
    }
