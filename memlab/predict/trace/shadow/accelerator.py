"""DeepSpeed's accelerator for the simulated device: it answers every query as the CUDA accelerator would."""

import contextlib

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from memlab.predict.trace.shadow import device
from memlab.predict.trace.shadow.collectives import BACKEND


def _typed_tensor(dtype: torch.dtype) -> property:
    return property(lambda accelerator: lambda values: torch.tensor(values, dtype=dtype, device=device.DEVICE))


class Accelerator(CPU_Accelerator):
    """CUDA's answers on top of the CPU accelerator, which never queries a driver."""

    _torch_pins_host_memory = True

    def __init__(self, recorder, world_size: int, total_bytes: int):
        super().__init__()
        self._name = device.NAME
        self._communication_backend_name = BACKEND
        self._recorder = recorder
        self._world_size = world_size
        self._total_bytes = total_bytes

    # --- asynchronous, with streams
    def is_synchronized_device(self):
        return False

    Stream = property(lambda self: device.new_stream)
    Event = property(lambda self: device.Event)

    def stream(self, stream):
        return device.on_stream(stream)

    def current_stream(self, device_index=None):
        return device.Stream.current

    def default_stream(self, device_index=None):
        return device.DEFAULT_STREAM

    def synchronize(self, device_index=None):
        self._recorder.synchronize()

    # --- one device
    def device_name(self, device_index=None):
        return device.NAME if device_index is None else f"{device.NAME}:{device_index}"

    def current_device(self):
        return 0

    def current_device_name(self):
        return device.DEVICE

    def device(self, device_index=None):
        return contextlib.nullcontext()

    def device_count(self):
        return self._world_size

    def on_accelerator(self, tensor):
        return tensor.device.type == device.NAME

    def create_op_builder(self, op_name):
        # Shared-memory collectives belong to ranks on a CPU.
        return None if op_name == "ShareMemCommBuilder" else super().create_op_builder(op_name)

    # --- memory
    def empty_cache(self):
        self._recorder.empty_cache()

    def memory_allocated(self, device_index=None):
        return self._recorder.allocated_bytes

    def memory_stats(self, device_index=None):
        return {}

    def total_memory(self, device_index=None):
        return self._total_bytes

    def available_memory(self, device_index=None):
        return self._total_bytes - self._recorder.allocated_bytes

    def pin_memory(self, tensor, make_copy=True, match_shape=True):
        return self._torch_empty_pinned(tensor, tensor.shape)

    def _torch_empty_pinned(self, tensor, shape):
        with self._recorder.pinning():
            return torch.empty(tuple(shape), dtype=tensor.dtype, device="cpu")  # zero.Init would put it on the device

    def _torch_is_pinned(self, tensor):
        return device.is_pinned(tensor)

    # --- dtypes
    def is_fp16_supported(self):
        return True

    def supported_dtypes(self):
        return [torch.float, torch.half, torch.bfloat16]

    BFloat16Tensor = _typed_tensor(torch.bfloat16)
    ByteTensor = _typed_tensor(torch.uint8)
    DoubleTensor = _typed_tensor(torch.double)
    FloatTensor = _typed_tensor(torch.float)
    HalfTensor = _typed_tensor(torch.half)
    IntTensor = _typed_tensor(torch.int)
    LongTensor = _typed_tensor(torch.long)
