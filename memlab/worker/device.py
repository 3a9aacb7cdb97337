"""The device of a rank: its memory meter, its clock and the driver's figures."""

import contextlib
import os
import time
from collections.abc import Callable

import torch

from memlab.attach.memory import pinned_peak_bytes
from memlab.worker.memory import CudaMemory, LiveTensorMemory, MemoryMeter


class CpuDevice:
    """The device of a CPU rank, which has no driver's figures."""

    name = "CPU"
    total_bytes = None

    def __init__(self):
        self.torch_device = torch.device("cpu")
        self.memory: MemoryMeter = LiveTensorMemory()

    def mark(self) -> float:
        """Return a time on the device's clock, for ``seconds_between``."""
        return time.perf_counter()

    def seconds_between(self, begin: float, end: float) -> float:
        return end - begin

    def synchronize(self) -> None:
        pass

    def used_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes that the driver has given out: on the whole device, and to this process."""
        return None, None

    def energy_joules(self) -> float | None:
        """Return the energy that the device has used so far, a running total."""
        return None

    def retries_and_ooms(self) -> tuple[int | None, int | None]:
        """Return the caching allocator's retries and out-of-memory errors, as running totals."""
        return None, None

    def pinned_bytes(self) -> int | None:
        """Return the peak of torch's pinned host memory since the process began, in bytes."""
        return None


class CudaDevice:
    """A GPU. Steps are timed with events on the stream, so timing does not make the host wait."""

    def __init__(self, local_rank: int):
        torch.cuda.set_device(local_rank)
        self.torch_device = torch.device("cuda", local_rank)
        properties = torch.cuda.get_device_properties(local_rank)
        self.name = properties.name
        self.total_bytes = properties.total_memory
        self.memory = CudaMemory(self.torch_device)
        self._nvml = _Nvml(str(properties.uuid))

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return begin.elapsed_time(end) / 1000

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def used_bytes(self) -> tuple[int | None, int | None]:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free, self._nvml.process_used_bytes()

    def energy_joules(self) -> float | None:
        return self._nvml.energy_joules()

    def retries_and_ooms(self) -> tuple[int | None, int | None]:
        return self.memory.retries_and_ooms()

    def pinned_bytes(self) -> int | None:
        return pinned_peak_bytes()


class _Nvml:
    """The driver's figures of one GPU. A figure is ``None`` if the driver does not report it (containers, MIG)."""

    def __init__(self, uuid: str):
        import pynvml

        self.pynvml = pynvml
        self.handle = None
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            prefix = "" if uuid.startswith(("GPU-", "MIG-")) else "GPU-"
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid)

    def process_used_bytes(self) -> int | None:
        processes = self._ask(self.pynvml.nvmlDeviceGetComputeRunningProcesses) or []
        return next((p.usedGpuMemory for p in processes if p.pid == os.getpid()), None)

    def energy_joules(self) -> float | None:
        millijoules = self._ask(self.pynvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1000

    def _ask(self, question: Callable):
        if self.handle is None:
            return None
        try:
            return question(self.handle)
        except self.pynvml.NVMLError:
            return None


def rank_device(kind: str, local_rank: int) -> CpuDevice | CudaDevice:
    """Return the device of this rank. ``kind`` is ``hardware.device`` of the configuration."""
    return CpuDevice() if kind == "cpu" else CudaDevice(local_rank)
