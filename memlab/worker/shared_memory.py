"""DeepSpeed's shared memory of CPU ranks: its names go as soon as everybody holds it.

DeepSpeed maps one segment of 66 MiB for each rank of a CPU launch (csrc/cpu/comm/shm.cpp) and never removes its name:
a hundred launches would fill /dev/shm, which is the machine's memory. Without a name the mapping lives exactly as long
as the processes that use it, however they end.
"""

import os

import deepspeed
import torch

from memlab.segments import segment


def map_and_release(rank: int) -> None:
    """Have every rank map every segment, then remove this rank's name."""
    deepspeed.init_distributed()  # zero.Init and the engine would do it, in the middle of what may fail
    torch.distributed.barrier()
    # Ranks on several hosts do not share memory: then there is none.
    segment(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], rank).unlink(missing_ok=True)
