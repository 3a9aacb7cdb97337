"""Puts a fault into a rank, from outside the product: Python imports this file in every process that finds it.

MEMLAB_TEST_FAULT=<what>:<rank>:<step>[:<part of the run folder's name>], several with a comma between them; what is one
of oom, hang, kill (SIGKILL to itself), kill_launcher.
"""

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from pathlib import Path

TARGET = "memlab.training.launch"
WORKER_FILE = str(Path(__file__).resolve().parents[3] / "memlab" / "training" / "__main__.py")  # under srun


def strike(what: str) -> None:
    (Path(os.environ["MEMLAB_TEST_FOLDER"]) / "struck").write_text(what)
    if what == "oom":
        import torch

        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 1 GiB"
        )
    if what == "hang":
        time.sleep(3600)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "kill_launcher":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)


class Patch(importlib.abc.MetaPathFinder):
    """After the target is imported, its RankLaunch strikes at the chosen rank, after the chosen step."""

    def find_spec(self, name, path, target=None):
        if name != TARGET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        original = spec.loader.exec_module

        def exec_module(module):
            original(module)
            self.patch(module.RankLaunch)

        spec.loader.exec_module = exec_module
        return spec

    def patch(self, launch) -> None:
        faults = [fault.split(":") for fault in os.environ["MEMLAB_TEST_FAULT"].split(",")]
        step_end = launch.step_end

        def step_end_or_strike(self):
            folder = self.point.folder.path.name
            step_end(self)
            for what, rank, step, *where in faults:
                here = all(part in folder for part in where)
                if here and self.rank == int(rank) and self.session.steps_done == int(step):
                    strike(what)

        launch.step_end = step_end_or_strike


if os.environ.get("MEMLAB_TEST_FAULT") and ("memlab.training" in sys.orig_argv or sys.orig_argv[2:3] == [WORKER_FILE]):
    sys.meta_path.insert(0, Patch())
