"""Patches of torch for fake tensors, and the properties of the GPU that libraries query."""

from types import SimpleNamespace

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memlab.predict.constants import Generation
from memlab.predict.trace.shadow import collectives, device


def install() -> None:
    """Patch torch. Call before importing DeepSpeed, which keeps references to functions of torch."""
    _no_compiler()
    _whole_backwards()
    collectives.install()
    _tensor_constructor()
    _list_indices()
    _module_conversion()
    _foreach_optimizers()


def _no_compiler() -> None:
    """Disable torch.compile: importing DeepSpeed compiles a function that is never called, which takes two seconds."""
    torch.compile = lambda model=None, **options: model if model is not None else (lambda function: function)


def _whole_backwards() -> None:
    """Register backward operators that are one kernel on CUDA. Without a kernel of the backend, torch would run
    several operators, with a temporary for each."""
    for name in ("silu_backward", "mish_backward"):
        torch.library.impl(f"aten::{name}", "PrivateUse1", _never_called)


def _never_called(*args, **kwargs):
    raise NotImplementedError("fake tensors need no kernel")


def _tensor_constructor() -> None:
    """Make ``torch.tensor(..., device=)`` create a host tensor and move it: its own copy bypasses the dispatcher."""
    make = torch.tensor

    def tensor(data, *, dtype=None, device=None, requires_grad=False, pin_memory=False):
        return make(data, dtype=dtype, requires_grad=requires_grad).to(device)

    torch.tensor = tensor


def _list_indices() -> None:
    """Make ``tensor[..., [-2]]`` convert its lists with ``torch.tensor``: its own copy bypasses the dispatcher."""

    def getitem(tensor: FakeTensor, index):
        if isinstance(index, tuple) and any(isinstance(part, list) for part in index):
            index = tuple(
                torch.tensor(part, device=tensor.device) if isinstance(part, list) else part for part in index
            )
        return torch.Tensor.__getitem__(tensor, index)

    FakeTensor.__getitem__ = getitem


def _module_conversion() -> None:
    """Make ``Module.to`` set ``param.data``, as with real tensors. For fake tensors torch would swap the parameters,
    which fails."""

    def apply(module: torch.nn.Module, fn, recurse: bool = True) -> torch.nn.Module:
        for child in module.children() if recurse else ():
            child._apply(fn)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                with torch.no_grad():
                    _replace_data(module, name, parameter, fn(parameter))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
        return module

    torch.nn.Module._apply = apply


def _replace_data(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter, data: torch.Tensor) -> None:
    if data.device.type == parameter.device.type:
        parameter.data = data
    else:  # a fake tensor cannot change its device; adapters are created on the host
        module._parameters[name] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)


def move_parameters(model: torch.nn.Module) -> None:
    """Move parameters that a model creates on the host to the device (``torch.normal`` ignores the default device).

    On a real device the engine moves them and keeps the parameter objects. Fake parameters must be replaced, before the
    optimizer receives them. Parameters that ZeRO-3 has partitioned stay where they are.
    """
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.device.type == "cpu" and not hasattr(parameter, "ds_id"):
                _replace_data(module, name, parameter, parameter.data.to(device.DEVICE))


def _foreach_optimizers() -> None:
    """Make torch's optimizers use their multi-tensor (foreach) code, which they choose only for real tensors."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    optimizer._foreach_supported_types.append(FakeTensor)
    supported = _foreach_utils._get_foreach_kernels_supported_devices()
    for module in (_foreach_utils, optimizer):
        module._get_foreach_kernels_supported_devices = lambda: [*supported, device.NAME]


def describe_gpu(gpu: Generation) -> None:
    """Answer the queries of torch, transformers and accelerate about the GPU."""
    import transformers.training_args
    import transformers.utils.import_utils
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    major, minor = gpu.capability
    properties = SimpleNamespace(multi_processor_count=gpu.multiprocessors, major=major, minor=minor)
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_capability = lambda device=None: gpu.capability
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    # transformers skips masks that are not needed, except for fake tensors.
    transformers.utils.import_utils.is_fake_tensor = lambda tensor: False
    PartialState._prepare_backend = lambda self, *args, **kwargs: (collectives.BACKEND, DistributedType.MULTI_GPU)
