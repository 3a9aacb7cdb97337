"""Entry point of a rank: redirects all output to the rank's log, runs the points and exits after writing its result."""

import faulthandler
import os
import signal
import sys
import threading

from memlab.runs.folder import RunFolder
from memlab.training.lifeline import end_with_memlab
from memlab.training.output import write_output_to

ENGINES = {
    "RANK": ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK"),
    "LOCAL_RANK": ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
}
"""Variable that DeepSpeed's launch.py sets -> variables that srun and mpirun set when they start the ranks instead."""


def find_rank() -> int:
    """Return the rank of this process. Sets RANK and LOCAL_RANK if they are not set."""
    for name, sources in ENGINES.items():
        if name not in os.environ:
            os.environ[name] = next(os.environ[source] for source in sources if source in os.environ)
    return int(os.environ["RANK"])


TEARDOWN_S = 30
"""Seconds that the process groups may take to close. The results are on disk by then, so a hang loses nothing."""


def main() -> int:
    folders = [RunFolder(path) for path in sys.argv[1:]]
    rank = find_rank()
    write_output_to(folders[0], rank)
    end_with_memlab()
    # At a time-out memlab sends SIGUSR1: write all Python stacks, even while the main thread is inside a collective.
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    from memlab.training.launch import run_points  # imports torch last: the import may take long or fail

    return run_points(folders, rank)


def close_process_groups() -> None:
    import torch.distributed

    watchdog = threading.Timer(TEARDOWN_S, leave, args=(0,))
    watchdog.daemon = True
    watchdog.start()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def leave(code: int) -> None:
    """End the process without waiting for threads of NCCL and DeepSpeed, which can keep a finished rank alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    exit_code = main()
    if exit_code == 0:
        close_process_groups()
    leave(exit_code)
