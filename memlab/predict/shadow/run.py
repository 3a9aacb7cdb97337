"""Trace the points of a request: everything is imported once, then each point has a fork of its own."""

import gc
import os
import time
import traceback
import warnings
from pathlib import Path

from torch._subclasses.fake_tensor import FakeTensorMode

from memlab.config import from_dict
from memlab.plan import Plan
from memlab.predict import constants
from memlab.predict.events import Trace
from memlab.predict.shadow import device, stand_ins
from memlab.predict.shadow.request import Point, Request
from memlab.predict.shadow.trace import Recorder
from memlab.record import RunFolder


def trace_all(request: Request) -> int:
    """Trace every point, as many at a time as there are cores. Returns 0, or 1 when one failed."""
    warnings.simplefilter("ignore")
    stand_ins.install_in_torch()
    import deepspeed  # noqa: F401
    import transformers.trainer  # noqa: F401

    gc.freeze()  # the forks share what was imported
    waiting, running, failed = list(request.points), set(), False
    while waiting or running:
        while waiting and not failed and len(running) < (os.cpu_count() or 1):
            running.add(_fork(request, waiting.pop()))
        if not running:
            break
        pid, status = os.wait()
        running.discard(pid)
        failed |= status != 0
    return int(failed)


def _fork(request: Request, point: Point) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        trace_point(request, point)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # nothing of the parent's is to be closed twice


def trace_point(request: Request, point: Point) -> None:
    """Write the trace of one point. The process cannot trace another one after it."""
    began = time.perf_counter()
    plan = Plan(**request.plan)
    os.environ["RANK"] = str(point.rank)
    trace = Trace(point.rank, plan.world_size, point.micro, point.tokens)
    hardware = plan.config["hardware"]
    gpu = constants.generation(hardware["gpu"])
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = Recorder(trace, fake_mode, gpu.cublas_workspace)
    recorder.padded = plan.config["data"]["source"] != "random"
    device.install(recorder, point.rank, plan.world_size, hardware["memory_gib"])
    stand_ins.install_in_libraries(recorder, fake_mode, gpu, from_dict(plan.config))
    from memlab.predict.shadow.training import Shadow

    with fake_mode, recorder:
        Shadow(plan, recorder, point.micro, point.tokens, request.steps, RunFolder(request.folder)).run()
    trace.seconds = time.perf_counter() - began
    trace.save(Path(request.folder) / point.file_name)
