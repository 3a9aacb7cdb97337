"""Which rank this process is."""

import os

ENGINES = {
    "RANK": ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK"),
    "LOCAL_RANK": ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
}
"""DeepSpeed's launch.py sets the keys. Where srun or mpirun starts the ranks in place of it, they set these."""


def find_rank() -> int:
    """This process's rank. Sets RANK and LOCAL_RANK, where nobody has."""
    for name, sources in ENGINES.items():
        if name not in os.environ:
            os.environ[name] = next(os.environ[source] for source in sources if source in os.environ)
    return int(os.environ["RANK"])
