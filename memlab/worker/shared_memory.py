"""DeepSpeed's shared memory of CPU ranks: memlab removes its names once every rank has mapped it.

DeepSpeed maps one segment of 66 MiB for each rank of a CPU launch (csrc/cpu/comm/shm.cpp) and never removes the name of
the segment. A hundred launches would fill /dev/shm, which uses the machine's memory. A segment without a name lives
exactly as long as the processes that map it, however they end.
"""

import os

import deepspeed
import torch

from memlab.system.shared_memory import segment


def map_and_release(rank: int) -> None:
    """Map the segments of all ranks, then remove the name of this rank's segment."""
    deepspeed.init_distributed()  # otherwise zero.Init or the engine maps them, later, in code that may fail
    torch.distributed.barrier()
    # Ranks on several hosts share no memory: then the segment is missing.
    segment(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], rank).unlink(missing_ok=True)
