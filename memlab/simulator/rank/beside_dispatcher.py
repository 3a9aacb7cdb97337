"""Functions of torch that bypass its dispatcher, changed so that they go through it.

This is code that makes tensors from Python data, that reads their bytes or addresses, or that replaces the data of a
parameter.
"""

import re
import threading
from itertools import count
from typing import Any

import torch
from torch._ops import OpOverloadPacket
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memlab.simulator.rank import device

_aten = torch.ops.aten
_Tensor = torch.Tensor
_TO_LIST = torch.Tensor.tolist


def install() -> None:
    """Patch torch, once in a process and before libraries that keep references to its functions."""
    # Make no tensor on a real GPU: fake tensors begin with one, where torch is built for CUDA.
    fake_tensor.init_gpu_context = lambda device: None
    _one_kernel_backwards()
    _constructors()
    _indices()
    _readers()
    _numbers_of_operators()
    _addresses()
    _streams()
    _resized_storages()
    _shared_memory()
    _parameters()
    _foreach_optimizers()


def install_in_threads(recorder) -> None:
    """Make every new thread record: a dispatch mode belongs to one thread."""
    kind: Any = threading.Thread  # whose stubs lack the caller of ``run``, which subclasses replace
    bootstrap = kind._bootstrap_inner

    def recorded(thread: threading.Thread) -> None:
        with recorder:
            bootstrap(thread)

    kind._bootstrap_inner = recorded


def _one_kernel_backwards() -> None:
    """Register backward operators that are one kernel on CUDA. Without CUDA's kernels, torch would run several
    operators, with a temporary for each."""
    for name in ("silu_backward", "mish_backward"):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            torch.library.impl(f"aten::{name}", "CUDA", _never_called)


def _never_called(*args, **kwargs):
    raise NotImplementedError("fake tensors need no kernel")


# --- tensors from Python data


def _constructors() -> None:
    """Make tensors on the host, then copy them to their device."""
    make, as_tensor = torch.tensor, torch.as_tensor

    def tensor(data, *, dtype=None, device=None, requires_grad=False, pin_memory=False):
        if isinstance(data, FakeTensor):
            made = data.detach().clone().to(device or data.device, dtype or data.dtype)
        else:
            made = make(_plain(data), dtype=dtype, device="cpu").to(_default_device() if device is None else device)
        return made.requires_grad_() if requires_grad else made

    def as_tensor_(data, dtype=None, device=None):
        if isinstance(data, _Tensor):
            return data.to(device=data.device if device is None else device, dtype=dtype or data.dtype)
        made = as_tensor(_plain(data), dtype=dtype, device="cpu")
        return made.to(_default_device() if device is None else device)

    def asarray(data, *, dtype=None, device=None, copy=None, requires_grad=False):
        made = as_tensor_(data, dtype, device)
        made = made.clone() if copy and made is data else made
        return made.requires_grad_() if requires_grad else made.detach()

    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, **options):
        return tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)

    for name, function in {"tensor": tensor, "as_tensor": as_tensor_, "asarray": asarray}.items():
        function.__module__, function.__name__, function.__qualname__ = "torch", name, name  # pickle finds it there
    torch.tensor, torch.as_tensor, torch.asarray, _Tensor.new_tensor = tensor, as_tensor_, asarray, new_tensor
    for function, operator in ((tensor, "aten::tensor"), (as_tensor_, "aten::as_tensor")):
        torch.jit._builtins._register_builtin(function, operator)  # torch.jit.script knows them by the function


def _default_device() -> torch.device:
    """The device of ``with torch.device(...)`` or ``torch.set_default_device``. torch's own function makes a tensor."""
    modes = reversed(_get_current_function_mode_stack())
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), torch.device("cpu"))


def _plain(data: Any) -> Any:
    """Replace fake tensors in lists by their values."""
    if isinstance(data, FakeTensor):
        return data.tolist() if data.dim() else data.item()
    if isinstance(data, list | tuple) and any(isinstance(item, FakeTensor | list | tuple) for item in data):
        return [_plain(item) for item in data]
    return data


def _indices() -> None:
    """Convert lists in ``tensor[..., [-2]]`` and values in ``tensor[mask] = 0.5`` to tensors."""
    getitem, setitem = _Tensor.__getitem__, _Tensor.__setitem__

    def set_item(tensor: FakeTensor, index, value) -> None:
        index = _with_tensors(tensor, index)
        if isinstance(value, _Tensor):
            setitem(tensor, index, value)
        elif isinstance(index, _Tensor) and index.dtype is torch.bool and isinstance(value, bool | int | float):
            tensor.masked_fill_(index.reshape(index.shape + (1,) * (tensor.dim() - index.dim())), value)
        elif _has_tensors(index) or not isinstance(value, bool | int | float):
            setitem(tensor, index, torch.tensor(value, dtype=tensor.dtype))
        else:
            getitem(tensor, index).fill_(value)

    FakeTensor.__getitem__ = lambda tensor, index: getitem(tensor, _with_tensors(tensor, index))
    FakeTensor.__setitem__ = set_item


def _has_tensors(index: Any) -> bool:
    return isinstance(index, _Tensor) or (isinstance(index, tuple) and any(isinstance(part, _Tensor) for part in index))


def _with_tensors(tensor: torch.Tensor, index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_with_tensors(tensor, part) for part in index)
    return torch.tensor(list(index), device=tensor.device) if isinstance(index, list | range) else index


# --- values and addresses


def _readers() -> None:
    """Read the values of fake tensors, or those of a healthy run."""
    for name in ("tolist", "numpy", "__array__"):
        setattr(_Tensor, name, _reading(getattr(_Tensor, name)))
    FakeTensor.tolist = _Tensor.tolist  # its own reads element by element, each of which the host would wait for
    FakeTensor.__format__ = _formatted


def _formatted(tensor: FakeTensor, specification: str) -> str:
    """Format the value of a scalar, as in ``f"{loss:.3f}"``: torch does so for its own class alone."""
    return format(tensor.item(), specification) if tensor.dim() == 0 else object.__format__(tensor, specification)


def _reading(method):
    def read(tensor: torch.Tensor, *args, **options):
        tensor = tensor.cpu() if method is _TO_LIST else tensor  # one copy, as in torch
        if not isinstance(tensor, FakeTensor):
            return method(tensor, *args, **options)
        found = method(device.recorder.reads.real(tensor), *args, **options)
        if method is _TO_LIST:
            return found
        from memlab.simulator.rank import arrays  # imports numpy, which the program has if it asks for arrays

        return arrays.without_memory(found, tensor.untyped_storage())

    return read


_GIVEN_FOR_A_NUMBER = re.compile(
    r"value of type '(?:float|int|bool|number)' for argument '(\w+)' but instead found type 'FakeTensor'\.\s+"
    r"Position: (\d+)"
)
"""torch's message where a program gives a tensor to an operator that takes a number: it reads only real tensors."""


def _numbers_of_operators() -> None:
    """Read tensors that programs give to operators as numbers, as bitsandbytes does with a norm."""
    call = OpOverloadPacket.__call__

    def with_numbers(operator: OpOverloadPacket, /, *args, **options):
        try:
            return call(operator, *args, **options)
        except RuntimeError as error:
            found = _GIVEN_FOR_A_NUMBER.search(str(error))
            if found is None:
                raise
        name, position = found[1], int(found[2])
        if name in options:
            return with_numbers(operator, *args, **{**options, name: options[name].item()})
        return with_numbers(operator, *args[:position], args[position].item(), *args[position + 1 :], **options)

    OpOverloadPacket.__call__ = with_numbers


_next_address = count(1 << 40, 1 << 30)


def _addresses() -> None:
    """Give the storages of fake tensors addresses: programs compare them, and pass them to kernels."""
    of_tensor, of_storage = _Tensor.data_ptr, torch.UntypedStorage.data_ptr

    def storage_address(storage: torch.UntypedStorage) -> int:
        if storage.device.type == "cpu":
            return of_storage(storage)
        if not hasattr(storage, "_memlab_address"):
            storage._memlab_address = next(_next_address)
        return storage._memlab_address

    def address(tensor: torch.Tensor) -> int:
        if not isinstance(tensor, FakeTensor):
            return of_tensor(tensor)
        return storage_address(tensor.untyped_storage()) + tensor.storage_offset() * tensor.element_size()

    _Tensor.data_ptr, torch.UntypedStorage.data_ptr = address, storage_address


def _streams() -> None:
    """Record streams of fake tensors where no dispatch mode sees them: FSDP switches the modes off for the call."""
    of_tensor = _Tensor.record_stream

    def record_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
        if isinstance(tensor, FakeTensor):
            device.recorder.memory.record_stream(tensor, stream.stream_id)
        else:
            of_tensor(tensor, stream)

    _Tensor.record_stream = record_stream


def _resized_storages() -> None:
    """Record storages that are emptied and filled again, which no operator sees: FSDP's gathered parameters."""
    resize = torch.UntypedStorage.resize_

    def resize_and_record(storage: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
        before, out = storage.nbytes(), resize(storage, nbytes)
        if nbytes != before:
            device.recorder.resized(storage)
        return out

    torch.UntypedStorage.resize_ = resize_and_record


def _shared_memory() -> None:
    """Let tensors without bytes be shared between processes: their memory on the host is as large as before."""
    share, is_shared = _Tensor.share_memory_, _Tensor.is_shared

    def share_memory(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor):
            return share(tensor)
        tensor.untyped_storage()._memlab_shared = True
        return tensor

    def has_shared_memory(tensor: torch.Tensor) -> bool:
        if not isinstance(tensor, FakeTensor):
            return is_shared(tensor)
        return tensor.is_cuda or hasattr(tensor.untyped_storage(), "_memlab_shared")

    _Tensor.share_memory_, _Tensor.is_shared = share_memory, has_shared_memory


# --- parameters


def _parameters() -> None:
    """Keep parameters the same objects while their data moves between host and device, as with real tensors.

    For this every float parameter is fake from the start. For fake tensors torch would replace the parameters.
    """
    new = torch.nn.Parameter.__new__

    def parameter(cls, data=None, requires_grad=True):
        if type(data) in (_Tensor, torch.nn.Parameter) and data.is_floating_point() and data.device.type == "cpu":
            data = device.recorder.fake(data.detach())
        return new(cls, data, requires_grad)

    torch.nn.Parameter.__new__ = staticmethod(parameter)

    fake = FakeTensor.__new__

    def made_again(cls, *args, **attributes):
        """Make a parameter from another one's class and attributes, as accelerate's ``init_empty_weights`` does."""
        if args and isinstance(args[0], _Tensor):
            return torch.nn.Parameter(args[0], attributes.get("requires_grad", True))
        return fake(cls, *args, **attributes)

    FakeTensor.__new__ = made_again

    get_data, set_data = _Tensor.data.__get__, _Tensor.data.__set__

    def replace(tensor: FakeTensor, data: torch.Tensor) -> None:
        data = data if isinstance(data, FakeTensor) else device.recorder.fake(data)
        set_data(tensor, data)
        tensor.fake_device = data.fake_device

    FakeTensor.data = property(get_data, replace)

    def apply(module: torch.nn.Module, function, recurse: bool = True) -> torch.nn.Module:
        for child in module.children() if recurse else ():
            child._apply(function)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                with torch.no_grad():
                    moved = function(parameter)
                    gradient = None if parameter.grad is None else function(parameter.grad)
                is_meta = "meta" in (parameter.device.type, moved.device.type)  # then torch makes a new one, too
                if isinstance(parameter, FakeTensor) and not is_meta:
                    parameter.grad = None
                    parameter.data = moved
                    parameter.grad = gradient
                elif is_traceable_wrapper_subclass(moved):  # DTensor: as torch does, so that tied parameters stay tied
                    parameter.grad = None
                    torch.utils.swap_tensors(parameter, torch.nn.Parameter(moved, parameter.requires_grad))
                    parameter.grad = gradient
                else:
                    module._parameters[name] = torch.nn.Parameter(moved, parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
        return module

    torch.nn.Module._apply = apply


def _foreach_optimizers() -> None:
    """Make torch's optimizers use their multi-tensor (foreach) code, which they choose only for real tensors."""
    from torch.optim import optimizer

    optimizer._foreach_supported_types.append(FakeTensor)
