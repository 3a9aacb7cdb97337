"""Sweeps with a short script in place of deepspeed, on machines that are not there."""

from memlab.core.config import Sweep
from memlab.core.record import Record
from memlab.core.sizes import GIB
from memlab.launch.job_launch import Measuring
from memlab.launch.sweep import RunningSweep
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


def measuring(machine: Machine, options: Sweep, observer: SweepObserver, force: bool = False, kind=RunningSweep):
    """A sweep that measures, or a search."""
    return kind(Measuring(machine, options, force), options, observer)


def measure_job(job: Job, force: bool = False, on_wait=lambda text: None, machine: Machine = CPU) -> Record:
    return Measuring(machine, job.config.sweep, force).run_alone(job, on_wait)


def swept(
    jobs, force: bool = False, observer: SweepObserver | None = None, seed: int = 0, **options
) -> list[JobResult]:
    return measuring(CPU, Sweep(**options), observer or Told(), force).run(jobs, seed)


def scheduled(jobs: list[Job], force: bool = False, **options) -> Schedule:
    return measuring(CPU, Sweep(**options), SweepObserver(), force).schedule(jobs)


def ends(results: list[JobResult]) -> list[tuple[int, str, str]]:
    """Length, way and status of each job."""
    return [
        (result.job.config.seq_len.tokens, result.how, result.record.status if result.record else "-")
        for result in results
    ]
