"""Processes that a killed memlab left running in a run folder: they are ended before anything else runs there."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from memlab.core.errors import FolderError, MemlabError
from memlab.launch.nodes import takes_sigterm
from memlab.launch.process import TERMINATE_S
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job
from memlab.system.deadman import end_marked, marked, marked_by
from memlab.system.shared_memory import remove_segments


@contextmanager
def locked(job: Job) -> Iterator[bool]:
    """Lock the job's folder against other memlab processes. Yields false if another process holds the lock.

    First ends the orphans of the folder, because they would write the same files. Raises :class:`MemlabError` if they
    cannot be killed.
    """
    with job.folder.lock() as mine:
        if mine and (left := job.folder.kept_launch()):
            _end(job, *left)
        yield mine


@contextmanager
def exclusively(job: Job) -> Iterator[None]:
    """Lock the job's folder as :func:`locked`. Raises :class:`FolderError` if another process holds the lock."""
    with locked(job) as mine:
        if not mine:
            raise FolderError(
                f"{job.folder} is being measured by another memlab ({job.folder.holder()}): wait for it, end it if it "
                "hangs, or choose another name."
            )
        yield


@contextmanager
def noted(folders: Sequence[RunFolder], token: str, port: int = 0) -> Iterator[None]:
    """Note a launch in its run folders before the block, and remove the note after it.

    The note stays where processes could not be killed: the next memlab in these folders ends them.
    """
    for folder in folders:
        folder.keep_launch(token, port)
    try:
        yield
    finally:
        if not any(marked(token)):
            for folder in folders:
                folder.forget_launch()


def end_orphans(jobs: Iterable[Job]) -> None:
    """End the orphans in the folders of these jobs, also of finished jobs."""
    for job in jobs:
        if job.folder.kept_launch():
            with locked(job):
                pass


def _end(job: Job, token: str, port: int) -> None:
    if survivors := end_marked(token, TERMINATE_S if takes_sigterm(job.plan) else 0.0):
        raise MemlabError(
            f"{job.folder}: processes {survivors} of an earlier launch cannot be killed and write there still; "
            "choose another name, or restart the machine."
        )
    if not any(marked_by("MASTER_PORT", str(port))):  # otherwise a newer launch uses the same port
        remove_segments(port)
    job.folder.forget_launch()
