"""Sweeps with a short script in place of deepspeed, on machines that are not there."""

from memlab.core.config import Sweep
from memlab.core.sizes import GIB
from memlab.launch.sweep import MeasuredSweep
from memlab.runs.job import Job, JobResult, Schedule, SweepObserver
from memlab.system.machine import Gpu, Machine

CPU = Machine()
GPUS = Machine(tuple(Gpu(str(index), "NVIDIA H200", GIB, (9, 0)) for index in range(2)))
ON_ONE = {"hardware.device": "cuda", "hardware.gpus": 1, "hardware.gpu": "H200"}
TROUBLE = {"2/1x4": "oom", "1/1x2": "hang", "3/1x2": "die"}


class Told(SweepObserver):
    """Remembers what it is told; ``act`` is called after each result."""

    def __init__(self, act=lambda result: None):
        self.act, self.launches, self.results = act, [], []

    def launched(self, jobs, gpu_ids) -> None:
        self.launches.append([job.config.seq_len.tokens for job in jobs])

    def finished(self, result: JobResult) -> None:
        self.results.append(result)
        self.act(result)


def swept(
    jobs, force: bool = False, observer: SweepObserver | None = None, seed: int = 0, **options
) -> list[JobResult]:
    return MeasuredSweep(CPU, Sweep(**options), force, observer or Told()).run(jobs, seed)


def scheduled(jobs: list[Job], force: bool = False, **options) -> Schedule:
    return MeasuredSweep(CPU, Sweep(**options), force, SweepObserver()).schedule(jobs)


def ends(results: list[JobResult]) -> list[tuple[int, str, str]]:
    """Length, way and status of each job."""
    return [
        (result.job.config.seq_len.tokens, result.how, result.record.status if result.record else "-")
        for result in results
    ]
