"""Carry out the tasks of a request: everything is imported once, then each task has a fork of its own."""

import gc
import os
import time
import traceback
import warnings
from collections import deque
from pathlib import Path

from torch._subclasses.fake_tensor import FakeTensorMode

from memlab.config import from_dict
from memlab.plan import Plan
from memlab.predict import constants
from memlab.predict.events import Trace
from memlab.predict.shadow import device, stand_ins
from memlab.predict.shadow.request import Point, Request, variables
from memlab.predict.shadow.trace import Recorder
from memlab.record import RunFolder


def trace_all(request: Request) -> int:
    """Carry out every task, as many at a time as there are cores. What fails leaves no trace, and a log."""
    warnings.simplefilter("ignore")
    stand_ins.install_in_torch()
    import deepspeed  # noqa: F401
    import transformers.trainer  # noqa: F401

    gc.freeze()  # the forks share what was imported
    waiting, running, asking = deque(range(len(request.tasks))), 0, os.getppid()
    while waiting or running:
        if os.getppid() != asking:  # it was killed, and nobody waits for the rest
            waiting.clear()
        while waiting and running < len(os.sched_getaffinity(0)):
            _fork(request, waiting.popleft())
            running += 1
        if running:
            os.wait()
            running -= 1
    return 0


def _fork(request: Request, number: int) -> None:
    if os.fork():
        return
    log = os.open(request.log(number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        plan, point, path = request.tasks[number]
        trace = trace_point(Plan(**request.plans[plan]), point, request.steps, request.folder)
        trace.save(Path(path))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # nothing of the parent's is to be closed twice


def trace_point(plan: Plan, point: Point, steps: int, scratch: str) -> Trace:
    """The trace of one point. The process cannot trace another one after it."""
    began = time.perf_counter()
    os.environ.update(variables(plan), RANK=str(point.rank))
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
        Shadow(plan, recorder, point.micro, point.tokens, steps, RunFolder(scratch)).run()
    trace.seconds = time.perf_counter() - began
    return trace
