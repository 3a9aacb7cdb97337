"""Stand-ins for code that needs a real device: compiled kernels, in-place conversions and queries of GPU properties.

All other code of a shadow run is the installed DeepSpeed, transformers, accelerate and torch, unchanged.
"""

from types import SimpleNamespace

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from memlab.core.config import Config
from memlab.predict.constants import Generation
from memlab.predict.trace.shadow import attention, collectives, copies, device
from memlab.predict.trace.shadow.counting import Counter
from memlab.predict.trace.shadow.trace import Recorder


class _Kernels:
    """A compiled extension whose functions do nothing but count: the kernels only write into existing tensors."""

    def __init__(self, counter: Counter):
        self._counter = counter

    def __getattr__(self, name):
        def kernel(*args, **kwargs):
            self._counter.compiled(name, args)
            return 0

        return kernel


def install_in_torch() -> None:
    """Patch torch. Call before importing DeepSpeed, which keeps references to functions of torch."""
    _no_compiler()
    _whole_backwards()
    collectives.install()
    _tensor_constructor()
    _list_indices()
    _module_conversion()
    _foreach_optimizers()


def install_in_libraries(recorder: Recorder, fake_mode: FakeTensorMode, gpu: Generation, config: Config) -> None:
    _compiled_kernels(recorder.counter)
    _questions_about_the_gpu(gpu)
    _agreement_between_ranks()
    copies.install(recorder)
    attention.install(recorder, gpu)
    if config.adapter.method == "qlora":
        from memlab.predict.trace.shadow import four_bits

        four_bits.install(recorder, fake_mode, gpu)
    if config.kernels.implementation == "liger":
        from memlab.predict.trace.shadow import liger

        liger.install(recorder)


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


def _compiled_kernels(counter: Counter) -> None:
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.ops.op_builder.cpu import NotImplementedBuilder  # builder of ops that exist only for GPUs

    OpBuilder.load = NotImplementedBuilder.load = lambda self, verbose=True: _Kernels(counter)


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


def _questions_about_the_gpu(gpu: Generation) -> None:
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


def _agreement_between_ranks() -> None:
    """Disable ZeRO-3's comparisons with rank 0: each traced rank runs alone."""
    import deepspeed.runtime.zero.utils as zero_utils

    zero_utils.get_lst_from_rank0 = lambda numbers: numbers
    zero_utils.assert_lst_len_same_as_other_ranks = lambda numbers: None
