"""Memory meters with one interface: the counters of torch's allocator on a GPU, live tensors on a CPU.

A meter knows the running phase. When a phase ends, the meter adds the peak since the last reset to the phase and resets
torch's peak, so every phase has its own peak. Reading the counters needs no synchronisation and no allocation.
"""

import contextlib
import gc
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memlab.attach.clock import Mark, mark
from memlab.attach.counters import Counters, peaks_of
from memlab.attach.host import peak_resident_bytes, reset_peak_resident
from memlab.core.record import BEFORE_STEPS, CUDA_ALLOCATOR, LIVE_TENSORS, Phase


class MemoryMeter:
    """Peaks by phase, in bytes. Subclasses provide the counters."""

    source: str

    def __init__(self):
        self.phases: dict[str, Phase] = {}
        self.current: str | None = None
        self.on_leaving: Callable[[str | None], None] = lambda phase: None
        self.latest = (0, 0, 0, 0)  # what counters() returned last
        self.peak_allocated = self.peak_active = self.peak_reserved = 0

    def counters(self) -> tuple[int, int, int, int]:
        """Return bytes: allocated now, and the peaks of allocated, active and reserved since the last reset."""
        raise NotImplementedError

    def reset_peaks(self) -> None:
        raise NotImplementedError

    def install(self) -> None:
        """Start counting."""

    def pause(self) -> None:
        """Stop counting, if counting costs time."""

    def enter(self, phase: str | None) -> None:
        """End the running phase and begin ``phase``; ``None``: outside any phase."""
        self.fold()
        self.reset_peaks()
        self.on_leaving(self.current)
        self.current = phase

    def fold(self) -> None:
        """Update the peaks of the running phase and of the run from the counters."""
        self.latest = now, allocated, active, reserved = self.counters()
        self.peak_allocated = max(self.peak_allocated, allocated)
        self.peak_active = max(self.peak_active, active)
        self.peak_reserved = max(self.peak_reserved, reserved)
        if self.current is not None:
            phase = self.phases.setdefault(self.current, Phase(0, 0, 0))
            phase.peak_allocated_bytes = max(phase.peak_allocated_bytes, allocated)
            phase.peak_reserved_bytes = max(phase.peak_reserved_bytes, reserved)
            phase.end_allocated_bytes = now

    def host_peak(self) -> int:
        """Return the highest resident set since the process began, in bytes."""
        return peak_resident_bytes()

    def retries_and_ooms(self) -> tuple[int | None, int | None]:
        """Return the caching allocator's retries and out-of-memory errors since the process began."""
        return None, None

    def start_over(self) -> None:
        """Begin a point: free unused memory and reset the peaks.

        Keeps the phases before the first step (model build, engine init), which all points of a launch share.
        """
        self.enter(None)
        self.phases = {name: phase for name, phase in self.phases.items() if name in BEFORE_STEPS}
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.reset_peaks()
        self.peak_allocated = self.peak_active = self.peak_reserved = 0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.enter(name)
        yield
        self.enter(None)

    def during(self, name: Callable[[], str], function: Callable) -> Callable:
        """Wrap ``function`` so that each call runs in the phase ``name()``.

        After an exception the phase stays current, so that an out-of-memory can be reported with its phase.
        """

        def measured(*args, **kwargs):
            self.enter(name())
            result = function(*args, **kwargs)
            self.enter(None)
            return result

        return measured


class CudaMemory(MemoryMeter):
    """The counters of torch's CUDA caching allocator on one device, read and reset by the meters of attach/."""

    source = CUDA_ALLOCATOR

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device
        self._counters = Counters(torch._C)

    def counters(self) -> tuple[int, int, int, int]:
        stats = self._counters.read(self.device.index)
        return stats["allocated_bytes"]["all"]["current"], *peaks_of(stats)

    def reset_peaks(self) -> None:
        self._counters.reset_peaks(self.device.index, self._counters.read(self.device.index))

    def install(self) -> None:
        """Save the peaks before others reset them: DeepSpeed does so while it builds its optimizers."""
        self._counters.before_script_reset = lambda device: self.fold()
        self._counters.install()

    def retries_and_ooms(self) -> tuple[int, int]:
        return self._counters.totals(self.device.index, self._counters.read(self.device.index))


_GLOO_LETS_GO_S = 0.005
"""Seconds in which gloo's threads drop the tensors of a finished collective. Without this pause, they still held 4 to
30 % of 400 broadcast tensors (2 ranks, 2 cores, torch 2.13)."""


class LiveTensorMemory(MemoryMeter):
    """The meter on a CPU, where torch counts nothing: live tensor storages as allocated, the resident set as reserved.

    A dispatch mode sees every tensor that an operator returns. The count includes all tensors that torch's allocator
    would hold, but not the memory that a kernel uses and frees internally. The mode slows every operator, so it is
    paused while steps are timed.
    """

    source = LIVE_TENSORS

    def __init__(self):
        super().__init__()
        self.live = 0
        self.freed: deque[int] = deque()  # bytes to take off ``live``; other threads append, too
        self.peak = 0
        self.seen: set[int] = set()
        self.mode = _StorageMode(self)
        self.counting = False
        self.communicated = False
        self.highest_resident = 0

    def counters(self) -> tuple[int, int, int, int]:
        resident = peak_resident_bytes()
        self.highest_resident = max(self.highest_resident, resident)
        return self.settled(), self.peak, self.peak, resident

    def reset_peaks(self) -> None:
        if self.counting:
            self.peak = self.settled()
            reset_peak_resident()

    def fold(self) -> None:
        if self.counting:
            super().fold()

    def install(self) -> None:
        for tensor in gc.get_objects():  # tensors that were created before counting started
            if issubclass(type(tensor), torch.Tensor):
                self.track(tensor)
        self.mode.__enter__()
        self.counting = True

    def pause(self) -> None:
        if self.counting:
            self.enter(None)
            self.mode.__exit__(None, None, None)
            self.counting = False

    def start_over(self) -> None:
        if not self.counting:
            self.install()
        super().start_over()

    def host_peak(self) -> int:
        return max(self.highest_resident, peak_resident_bytes())  # reset_peaks has reset the system's figure

    def track(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.seen:
            return
        size = storage.nbytes()
        self.seen.add(key)
        if self.settled() + size > self.peak and self.communicated:
            time.sleep(_GLOO_LETS_GO_S)  # else the peak depends on when a thread drops a tensor
            self.communicated = False
        self.live += size
        self.peak = max(self.peak, self.settled())
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.freed.append(size)

    def settled(self) -> int:
        """Return the bytes of the tensors that are alive now."""
        while self.freed:
            self.live -= self.freed.popleft()
        return self.live


class _StorageMode(TorchDispatchMode):
    def __init__(self, meter: LiveTensorMemory):
        super().__init__()
        self.meter = meter

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.meter.track(value)
        self.meter.communicated |= function.namespace == "c10d"
        return result


class CpuDevice:
    """The device of a CPU rank, which has no driver's figures."""

    name = "CPU"
    total_bytes = None

    def __init__(self):
        self.torch_device = torch.device("cpu")
        self.memory: MemoryMeter = LiveTensorMemory()

    def mark(self) -> Mark:
        """Mark this moment on the device's clock."""
        return mark(on_device=False)

    def synchronize(self) -> None:
        pass

    def used_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes that the driver has given out: on the whole device, and to this process."""
        return None, None

    def energy_joules(self) -> float | None:
        """Return the energy that the device has used so far, a running total."""
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

    def mark(self) -> Mark:
        return mark(on_device=True)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def used_bytes(self) -> tuple[int | None, int | None]:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free, self._nvml.process_used_bytes()

    def energy_joules(self) -> float | None:
        return self._nvml.energy_joules()


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
