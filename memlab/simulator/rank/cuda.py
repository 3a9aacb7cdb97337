"""``torch.cuda`` without a driver: the functions of ``torch._C`` that its Python code calls, and the two classes whose
C++ parts only a CUDA build has.

Everything else in ``torch.cuda`` runs unchanged.
"""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch.cuda

from memlab.simulator.allocator import CachingAllocator
from memlab.simulator.outside.appearances import STREAM
from memlab.simulator.outside.parts import outside_bytes, parts_of, shipped
from memlab.simulator.rank import device
from memlab.simulator.rank.unpredictable import ASKS_THE_DRIVER, NO_REPLICAS, UnpredictableError
from memlab.simulator.rank.values import HEALTHY

CUDA_VERSION = "13.0"
NCCL_VERSION = (2, 28, 9)
"""Versions that the predictions stand for: those of the CUDA wheels of PyTorch 2.11."""


class Stream(torch.Stream):
    """``torch.cuda.Stream`` on the native library's streams."""

    def __new__(cls, device=None, priority=0, **known):
        if "stream_id" in known:
            return super().__new__(cls, **known)
        if priority < 0:
            _note_stream()
        return super().__new__(
            cls, device=torch.device("cuda", torch.cuda._get_device_index(device, True)), priority=priority
        )

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def wait_stream(self, stream: torch.Stream) -> None:
        self.wait_event(stream.record_event())

    def wait_event(self, event: torch.Event) -> None:
        event.wait(self)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        event = Event() if event is None else event
        event.record(self)
        return event


def _note_stream() -> None:
    device.recorder.libraries.note(STREAM)


class Event(torch.Event):
    """``torch.cuda.Event`` on the native library's events."""

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
        return super().__new__(cls, device="cuda", enable_timing=enable_timing)

    def record(self, stream: torch.Stream | None = None) -> None:
        super().record(torch.cuda.current_stream() if stream is None else stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        super().wait(torch.cuda.current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Return the time between two events in milliseconds. It is unknown: the value is that of a healthy run."""
        device.recorder.assumptions.note(f"as {HEALTHY}")
        return HEALTHY


def install() -> None:
    """Make ``torch.cuda`` work on the simulated GPUs. Call before importing libraries that ask for GPUs."""
    for name, value in answers().items():
        setattr(torch._C, name, value)
    for name in filter(asks_the_driver, dir(torch._C)):
        setattr(torch._C, name, _refusing(ASKS_THE_DRIVER.format(f"torch._C.{name}")))
    torch.version.cuda = CUDA_VERSION
    cuda = torch.cuda
    cuda._queued_calls.clear()  # torch's own checks of the driver
    cuda._device_count_nvml = lambda: -1  # unknown: torch then counts by _cuda_getDeviceCount
    cuda._cudart = SimpleNamespace(
        cudaMemGetInfo=_free_and_total,
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
        cudaHostRegister=lambda address, nbytes, flags: 0,
        cudaHostUnregister=lambda address: 0,
        cudaError=SimpleNamespace(success=0),
        cudaGetErrorString=str,
    )
    cuda._exchange_device = device.exchange
    cuda._maybe_exchange_device = lambda index: device.exchange(index)  # two functions: the compiler registers each
    cuda._get_device_properties = lambda index: _properties()
    cuda.default_generators = (device.Generator(),)
    for module in (cuda, cuda.streams):
        module.Stream, module.Event = Stream, Event
    cuda.graphs._cuda_isCurrentStreamCapturing = lambda: False
    for kind, told in _NOT_PREDICTED.items():
        kind.__new__ = _refusing(f"{told}, which is not predicted. Predict without it")
    # Functions that ask NVIDIA's driver how busy a GPU is.
    for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "device_memory_used"):
        setattr(cuda, name, _unknown)
    cuda.list_gpu_processes = lambda device=None: "no processes are running"
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, lambda *args, **options: 0)


_NOT_PREDICTED = {
    torch.cuda.CUDAGraph: "torch.cuda.CUDAGraph keeps what it captures in a memory pool of its own",
    torch.cuda.MemPool: "torch.cuda.MemPool gives the allocator other pools",
    torch.cuda.ExternalStream: "torch.cuda.ExternalStream is a stream of compiled code",
}
"""Classes that a prediction has no answer for -> why."""


def _refusing(told: str) -> Callable[..., NoReturn]:
    def refused(*args: Any, **options: Any) -> NoReturn:
        raise UnpredictableError(told)

    return refused


_OF_CUDA = re.compile(
    "_(cuda_|nccl_|gds_|broadcast|scatter|gather)"
    "(?!.*(getAllocator|HostAllocator|CUDAAllocator|tun|[Hh]istory|[Mm]etadata|BadFork|benchmark|mutex))"
)
"""Functions of ``torch._C`` that a build for CUDA has, without those that only keep settings."""


_NOTHING = (
    *("_cuda_init", "_cuda_ipc_collect", "_cuda_sleep", "_cuda_set_sync_debug_mode", "_cuda_clearCublasWorkspaces"),
    *("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats"),
    *("_cuda_resetPeakHostMemoryStats", "_cuda_resetAccumulatedHostMemoryStats"),
    *("_cuda_record_memory_history", "_cuda_attach_out_of_memory_observer"),
)
"""Functions of ``torch._C`` that do nothing in a prediction."""


def answers() -> dict[str, Any]:
    """Return what ``torch._C`` answers in a prediction, by name."""
    return {**dict.fromkeys(_NOTHING, lambda *args, **options: None), **_devices(), **_streams(), **_memory()}


def asks_the_driver(name: str) -> bool:
    """Whether a function of ``torch._C`` would ask NVIDIA's driver in a prediction. Its call ends the prediction."""
    return bool(_OF_CUDA.match(name)) and name not in answers()


def _unknown(device_: Any = None) -> int:
    device.recorder.assumptions.note("as 0")
    return 0


def _devices() -> dict:
    return {
        "_has_cuda": True,
        "_cuda_hasPrimaryContext": lambda index: index == device.current(),
        "_cuda_getDeviceCount": lambda: device.gpus.count,
        "_cuda_getDevice": device.current,
        "_cuda_setDevice": _set_device,
        "_cuda_exchangeDevice": device.exchange,
        "_cuda_maybeExchangeDevice": device.exchange,
        "_cuda_canDeviceAccessPeer": lambda index, peer: True,
        "_cuda_getArchFlags": lambda: "sm_{}{}".format(*device.gpus.model.capability),
        "_cuda_getCompiledVersion": lambda: 13000,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_nccl_version": lambda: NCCL_VERSION[0] << 32 | NCCL_VERSION[1] << 16 | NCCL_VERSION[2],
        "_nccl_version_suffix": lambda: b"",
        "_scatter": _scatter,
    }


def _set_device(index: int) -> None:
    torch.cuda._lazy_init()  # as the C++ function does: init_device_mesh asks whether a script has chosen its GPU
    device.exchange(index)


def _scatter(tensor: torch.Tensor, devices: list[int], *rest) -> list[torch.Tensor]:
    """Give a batch of ``torch.nn.DataParallel`` to its only GPU."""
    if len(devices) > 1:
        raise UnpredictableError(f"DataParallel spreads batches over {len(devices)} GPUs, and {NO_REPLICAS}")
    return [tensor.to(torch.device(device.NAME, devices[0]))]


def _streams() -> dict:
    def stream(number: int, index: int) -> tuple[int, int, int]:
        return number, index, 1  # c10::DeviceType::CUDA

    return {
        "_cuda_getCurrentStream": lambda index: stream(device.current_stream(index), index),
        "_cuda_getCurrentRawStream": device.current_stream,
        "_cuda_getDefaultStream": lambda index: stream(0, index),
        "_cuda_setStream": lambda stream_id, device_index, device_type: device.set_stream(device_index, stream_id),
        "_cuda_synchronize": lambda: device.recorder.synchronize(),
    }


def _memory() -> dict:
    return {
        "_cuda_memoryStats": _statistics,
        "_cuda_resetPeakMemoryStats": lambda index: _allocator(index).reset_peaks(),
        "_cuda_emptyCache": lambda: device.recorder.memory.empty_cache(),
        "_cuda_hostMemoryStats": lambda: {},
        "_cuda_setMemoryFraction": lambda fraction, index: _set_allocator(f"per_process_memory_fraction:{fraction}"),
        "_cuda_getMemoryFraction": lambda index: 1.0,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_set_allocator_settings": lambda settings: _set_allocator(settings),
        "_accelerator_setAllocatorSettings": lambda settings: _set_allocator(settings),
        "_cuda_memorySnapshot": lambda *args: {"segments": [], "device_traces": [], "allocator_settings": {}},
        "_accelerator_emptyCache": lambda: device.recorder.memory.empty_cache(),
        "_accelerator_getDeviceStats": _statistics,
        "_accelerator_resetPeakStats": lambda index: _allocator(index).reset_peaks(),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getMemoryInfo": _free_and_total,
    }


def _set_allocator(settings: str) -> None:
    device.recorder.set_allocator(settings)


def _allocator(index: int) -> CachingAllocator:
    return device.recorder.allocator.now(device.recorder.memory.number_of(index))


def _statistics(index: int) -> dict:
    """The nested statistics of ``torch._C._cuda_memoryStats``: those that people read, the others 0."""
    now = _allocator(index)
    requested = device.recorder.allocator.requested(device.recorder.memory.number_of(index))

    def figures(current: int, peak: int) -> dict:
        return {
            pool: {"current": current, "peak": peak, "allocated": peak, "freed": 0}
            for pool in ("all", "small_pool", "large_pool")
        }

    unknown = ("inactive_split_bytes", "allocation", "segment", "active", "inactive_split")
    return {
        **{name: figures(0, 0) for name in unknown},
        **{name: figures(0, 0)["all"] for name in ("oversize_allocations", "oversize_segments")},
        **dict.fromkeys(
            ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"), 0
        ),
        "max_split_size": -1,
        "allocated_bytes": figures(now.allocated, now.peak_allocated),
        "requested_bytes": figures(requested, now.peak_allocated),
        "active_bytes": figures(now.active, now.peak_active),
        "reserved_bytes": figures(now.reserved, now.peak_reserved),
    }


def _free_and_total(index: int) -> tuple[int, int]:
    outside = outside_bytes(parts_of(device.recorder.trace.appearances, shipped()))
    used = _allocator(index).reserved + outside
    return device.gpus.memory_bytes - used, device.gpus.memory_bytes


def _properties() -> SimpleNamespace:
    gpu = device.gpus.model
    major, minor = gpu.capability
    return SimpleNamespace(
        name=device.gpus.name,
        major=major,
        minor=minor,
        total_memory=device.gpus.memory_bytes,
        multi_processor_count=gpu.multiprocessors,
        max_threads_per_multi_processor=gpu.resident_threads,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid="",
        # CUDA C++ programming guide, technical specifications by compute capability (9.0)
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10,
        L2_cache_size=50 << 20,
    )
