"""Runs the tasks of a request: imports everything once, then forks the process for each start of the engine.

Tasks that share a start of the engine differ only in shape. After the start, each runs in a fork of its own.
"""

import fcntl
import gc
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memlab.core.config import Config
from memlab.core.plan import Plan
from memlab.runs.decode import decode_plan
from memlab.runs.folder import RunFolder
from memlab.simulator.rank import device, patches, stand_ins
from memlab.simulator.rank.recorder import Recorder
from memlab.simulator.rank.stand_ins import bitsandbytes
from memlab.simulator.rank.stand_ins.attention import FLASH
from memlab.simulator.trace.trace_format import Trace
from memlab.training.output import redirect_output
from memlab.training.simulated.shadow_process import EngineStart, Request, variables

POLL_S = 0.02


def trace_all(request: Request) -> None:
    """Run every task, as many at a time as there are cores. A failed task leaves a log, but no trace."""
    warnings.simplefilter("ignore")
    patches.install()
    for package in request.needless:
        sys.modules[package] = None  # type: ignore[assignment]  # an import then fails
    import deepspeed.runtime.engine
    import transformers.trainer  # noqa: F401

    # The engine would load Inductor for DeepSpeed's own compiler, which own training never uses: 0.9 s a start.
    deepspeed.runtime.engine.is_deepcompile_supported = lambda: False
    gc.freeze()  # forks then share the memory of imported modules
    gc.enable()
    cores = Cores(Path(request.folder))
    waiting, running, parent = deque(request.starts), 0, os.getppid()
    while waiting or running:
        if os.getppid() != parent:  # the parent was killed: start nothing more, let running tasks finish
            waiting.clear()
        while waiting and running < cores.count:
            _in_a_fork(_trace_points, request, waiting.popleft(), cores)
            running += 1
        if running:
            os.wait()
            running -= 1
    if os.getpgrp() == os.getpid():  # end the points whose engine start died before them
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


class Cores:
    """Locks that limit the running processes to the number of cores. The kernel frees the lock of a killed process."""

    def __init__(self, folder: Path):
        self.count = len(os.sched_getaffinity(0))
        self._locks = [(folder / f"core{number}.lock").open("w") for number in range(self.count)]

    def take(self) -> None:
        while not any(map(_locked, self._locks)):
            time.sleep(POLL_S)

    def give_back(self) -> None:
        for lock in self._locks:
            fcntl.lockf(lock, fcntl.LOCK_UN)


def _locked(file) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _in_a_fork(function: Callable[..., None], *arguments) -> None:
    if os.fork():
        return
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # skips the cleanup that the parent does


def _trace_points(request: Request, start: EngineStart, cores: Cores) -> None:
    """Start the engine once, then trace each point in a fork."""
    redirect_output(Path(request.folder) / start.log, os.O_TRUNC)
    began, path = 0.0, ""

    def split() -> tuple[int, int]:
        nonlocal began, path
        began = time.process_time()
        cores.give_back()
        forks = []
        for shape in start.shapes:
            forks.append(os.fork())
            if not forks[-1]:
                cores.take()
                micro, tokens, path = shape
                redirect_output(Path(request.folder) / start.log_of(path), os.O_TRUNC)
                return micro, tokens
        for fork in forks:
            os.waitpid(fork, 0)
        os._exit(0)

    cores.take()
    if request.cpu_limit_s:
        _limit_cpu_time(request.cpu_limit_s)
    plan = decode_plan(request.plans[start.plan], request.folder)
    trace = trace_one(plan, start.rank, split, request.steps, request.folder)
    trace.seconds = began + time.process_time()
    trace.save(Path(path))


def _limit_cpu_time(seconds: int) -> None:
    """End this process, and each fork, after so many seconds of CPU time; the kernel kills it 5 s later."""

    def too_long(signal_number, frame):
        # Not by an exception: thrown through torch's C++ frames it may abort the process without this reason.
        os.write(2, f"TimeoutError: it takes more than {seconds} s of CPU time\n".encode())
        os._exit(1)

    signal.signal(signal.SIGXCPU, too_long)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))


def trace_one(plan: Plan, rank: int, split: Callable[[], tuple[int, int]], steps: int, scratch: str) -> Trace:
    """Trace the (batch, tokens) that ``split`` returns once the engine is ready. Works once per process."""
    os.environ.update(variables(plan), RANK=str(rank))
    trace = Trace(rank, plan.world_size)
    hardware = plan.config.hardware
    gpus = device.Gpus(hardware.gpu, int((hardware.memory_gib or device.UNKNOWN_GIB) * 2**30), plan.world_size)
    recorder = Recorder(trace, FakeTensorMode(allow_non_fake_inputs=True))
    device.install(recorder, gpus)
    from memlab.training.simulated.training import Shadow

    stand_ins.install(recorder, gpus.model)
    del recorder.kernels[torch.ops.aten.embedding_dense_backward.default]  # these predictions were judged without it
    trace.smooth_from = _smooth_from(plan.config)
    with recorder:
        Shadow(plan, _as_built(plan.config), recorder, split, steps, RunFolder(scratch)).run()
    return trace


def _smooth_from(config: Config) -> int | None:
    """Return the tokens in a batch from which each size is one formula of batch and tokens; ``None``: never."""
    if config.kernels.implementation == "liger":  # its fused loss works in chunks of a power of two of tokens
        return None
    return bitsandbytes.cuda_ops()._gemm_4bit_custom_max_m + 1 if config.adapter.method == "qlora" else 1


def _as_built(config: Config) -> Config:
    """Return the configuration that a simulated rank builds: without files of weights, and with memlab's attention in
    place of flash-attn's."""
    attention = config.attention
    if attention.implementation.startswith("flash"):
        attention = replace(attention, implementation=FLASH)
    return replace(config, model=replace(config.model, weights="random"), attention=attention)
