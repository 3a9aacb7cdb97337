"""``with memlab.measure("folder"):`` and ``memlab.Callback()``: a training measured from inside its script."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from memlab.launch.orphans import exclusively
from memlab.launch.process import Ended
from memlab.launch.user_command.measure import job_in, plan_of_command, write_record
from memlab.launch.user_command.supervise import read_finished
from memlab.meters import install
from memlab.meters.options import MeterOptions
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job
from memlab.system.deadman import wait_until

WAIT_S = 60
"""Seconds that rank 0 waits for the files of the other ranks."""


@contextmanager
def measure(folder: str | os.PathLike, force: bool = False) -> Iterator[None]:
    """Measure the training inside the block into a run folder: a model built before is measured from there on.

    In a script of several ranks each rank enters the block, and rank 0 writes the record. ``force``: replace an earlier
    run. Raises :class:`FolderError` if the folder holds an earlier run, or files that are not memlab's.
    """
    from memlab.meters.start import begin_by_hand  # torch, which the script needs as well

    run, began = RunFolder(folder), time.perf_counter()
    with ExitStack() as held:
        if os.environ.get("RANK", "0") == "0":
            job = job_in(run, sys.orig_argv, force, "Choose another folder, or replace it with force=True.")
            held.enter_context(exclusively(job))
            install.remove(run.path)
            job.start(sys.orig_argv)
        file = begin_by_hand(MeterOptions(str(run)))
        held.push(lambda kind, error, traceback: _end(file, run, error, began))
        yield


def callback(folder: str | os.PathLike | None = None, force: bool = False) -> Any:
    """Return a callback for transformers' Trainer: it measures ``train()`` as :func:`measure` does.

    ``folder``: default, ``memlab`` in the Trainer's ``output_dir``.
    """
    from memlab.meters.callback import MeasuringCallback  # transformers

    return MeasuringCallback(lambda output_dir: measure(folder or Path(output_dir) / "memlab", force))


def _end(file: Any, run: RunFolder, error: BaseException | None, began: float) -> None:
    """Write this rank's file and, in rank 0, the record. What fails is said: the script goes on."""
    try:
        file.write_at_the_end(error)
        if file.rank == 0:
            _wait_for_ranks(run)
            ended = Ended("exited", int(error is not None), time.perf_counter() - began)
            finished = read_finished(run, ended, host_ooms=0, has_loaded=True)
            write_record(finished, Job(plan_of_command(sys.orig_argv), run), sys.orig_argv)
            install.remove(run.path)
    except Exception as failure:
        print(f"memlab: {run} has no record of this training: {failure!r}", file=sys.stderr)


def _wait_for_ranks(run: RunFolder) -> None:
    """Wait until all ranks have written their last file, but no longer than WAIT_S."""
    wait_until(lambda: _all_have_ended(run), WAIT_S, every_s=0.1)


def _all_have_ended(run: RunFolder) -> bool:
    """Whether as many ranks have ended as there are. Without the file of any rank, none is waited for."""
    facts = [rank["attached"] for rank in run.read_attached_ranks()]
    world_size = max((each.get("world_size") or 1 for each in facts), default=0)
    return sum(each.get("ended") != "running" for each in facts) >= world_size
