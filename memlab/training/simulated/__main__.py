"""``python -m memlab.training.simulated REQUEST``: trace ranks of plans in this process and its forks, without a GPU.

REQUEST is a JSON file (see :class:`memlab.training.simulated.shadow_process.Request`) that names the output file of
each trace.
Tracing has its own process, because the simulated GPUs and the changes to torch cannot be undone.
"""

import gc
import os
import sys
from pathlib import Path

from memlab.files.disk import cache_folder
from memlab.simulator.rank import native
from memlab.training.simulated.shadow_process import Request

if __name__ == "__main__":
    gc.disable()  # until all is imported: Python would spend a fifth of this time on a search for garbage
    library = native.load(cache_folder("native"))
    from memlab.simulator.rank import device
    from memlab.training.simulated import run  # they import torch

    device.start(library)
    run.trace_all(Request.load(Path(sys.argv[1])))
    os._exit(0)  # memlab waits for this end, and what torch cleans up first takes 0.4 s
