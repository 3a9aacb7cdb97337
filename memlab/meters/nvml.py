"""The driver's figures of all GPUs from NVML, which needs no CUDA context: memory in use, and who uses it.

Structures and functions: NVML API reference, "Device Queries" (nvmlMemory_v2_t, nvmlProcessInfo_t).
"""

import ctypes

NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE, as the memory of a process that the driver does not tell."""

MOST_PROCESSES = 256


class _Memory(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    ]

    VERSION = 2


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """GPUs by NVML's index, which CUDA_VISIBLE_DEVICES does not change. Raises ``OSError`` without a driver, and where
    an older driver lacks a function."""

    def __init__(self):
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")

    def count(self) -> int:
        number = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(number))
        return number.value

    def used_bytes(self, index: int) -> int:
        """Return the bytes in use on the whole GPU. Raises ``OSError`` if the driver does not tell."""
        memory = _Memory(version=ctypes.sizeof(_Memory) | _Memory.VERSION << 24)
        self._call("nvmlDeviceGetMemoryInfo_v2", self._gpu(index), ctypes.byref(memory))
        return memory.used

    def processes(self, index: int) -> dict[int, int]:
        """Return process id -> bytes, of the compute processes that the driver tells of: in a container perhaps none.

        Raises ``OSError`` if the driver does not tell.
        """
        number, found = ctypes.c_uint(MOST_PROCESSES), (_Process * MOST_PROCESSES)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", self._gpu(index), ctypes.byref(number), found)
        return {each.pid: each.used for each in found[: number.value] if each.used != NOT_AVAILABLE}

    def energy_joules(self, index: int) -> float:
        """Return the energy that the GPU has used since the driver was loaded. Raises ``OSError`` if it is not told."""
        millijoules = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._gpu(index), ctypes.byref(millijoules))
        return millijoules.value / 1000

    def _gpu(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def _call(self, name: str, *arguments) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise OSError(f"{name}: not in this driver")
        if code := function(*arguments):
            raise OSError(f"{name}: NVML error {code}")
