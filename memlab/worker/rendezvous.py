"""The rank number of this process."""

import os

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
