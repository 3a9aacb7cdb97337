"""What stands in for code that needs a real device: compiled kernels, conversions in place, and questions about the
GPU.

Everything else that runs in a shadow run is the installed DeepSpeed, transformers, accelerate and torch, as they are.
"""

from types import SimpleNamespace

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from memlab.config import Config
from memlab.predict.constants import Generation
from memlab.predict.shadow import attention, collectives, copies, device
from memlab.predict.shadow.counting import Counter
from memlab.predict.shadow.trace import Recorder


class _Kernels:
    """A compiled extension whose every function does nothing: kernels work in place on tensors that exist already."""

    def __init__(self, counter: Counter):
        self._counter = counter

    def __getattr__(self, name):
        def kernel(*args, **kwargs):
            self._counter.compiled(name, args)
            return 0

        return kernel


def install_in_torch() -> None:
    """To be called before DeepSpeed is imported: it keeps functions of torch's for itself."""
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
        from memlab.predict.shadow import four_bits

        four_bits.install(recorder, fake_mode, gpu)
    if config.kernels.implementation == "liger":
        from memlab.predict.shadow import liger

        liger.install(recorder)


def _no_compiler() -> None:
    """DeepSpeed decorates a function with torch.compile when it is imported, which costs two seconds and is never
    called."""
    torch.compile = lambda model=None, **options: model if model is not None else (lambda function: function)


def _whole_backwards() -> None:
    """CUDA has a kernel for these; a backend without one of its own gets a formula of several operators, which leaves
    a temporary behind each."""
    for name in ("silu_backward", "mish_backward"):
        torch.library.impl(f"aten::{name}", "PrivateUse1", _never_called)


def _never_called(*args, **kwargs):
    raise NotImplementedError("fake tensors need no kernel")


def _compiled_kernels(counter: Counter) -> None:
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.ops.op_builder.cpu import NotImplementedBuilder  # for kernels that exist for GPUs alone

    OpBuilder.load = NotImplementedBuilder.load = lambda self, verbose=True: _Kernels(counter)


def _tensor_constructor() -> None:
    """``torch.tensor(..., device=)`` copies without the dispatcher; here it makes a host tensor first and moves it."""
    make = torch.tensor

    def tensor(data, *, dtype=None, device=None, requires_grad=False, pin_memory=False):
        return make(data, dtype=dtype, requires_grad=requires_grad).to(device)

    torch.tensor = tensor


def _list_indices() -> None:
    """``tensor[..., [-2]]`` makes its index on the device without the dispatcher, too."""

    def getitem(tensor: FakeTensor, index):
        if isinstance(index, tuple) and any(isinstance(part, list) for part in index):
            index = tuple(
                torch.tensor(part, device=tensor.device) if isinstance(part, list) else part for part in index
            )
        return torch.Tensor.__getitem__(tensor, index)

    FakeTensor.__getitem__ = getitem


def _module_conversion() -> None:
    """``Module.to`` sets ``param.data`` as it does on real tensors; for fake ones torch would swap them, which
    fails."""

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
    else:  # a fake tensor cannot become one of another device: adapters are made on the host
        module._parameters[name] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)


def move_parameters(model: torch.nn.Module) -> None:
    """Those that a model makes on the host all the same (``torch.normal`` knows no default device) go to the device.

    On a real device the engine moves them, and they stay the same parameters; here they have to be others, before the
    optimizer gets them. Parameters that ZeRO-3 has partitioned are where they belong.
    """
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.device.type == "cpu" and not hasattr(parameter, "ds_id"):
                _replace_data(module, name, parameter, parameter.data.to(device.DEVICE))


def _foreach_optimizers() -> None:
    """torch's optimizers choose their multi-tensor code for real tensors only; let fake ones count as real."""
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
    # transformers spares itself masks that are not needed, but not while it is traced.
    transformers.utils.import_utils.is_fake_tensor = lambda tensor: False
    PartialState._prepare_backend = lambda self, *args, **kwargs: (collectives.BACKEND, DistributedType.MULTI_GPU)


def _agreement_between_ranks() -> None:
    """ZeRO-3 compares lists of numbers with those of rank 0; here every rank is alone."""
    import deepspeed.runtime.zero.utils as zero_utils

    zero_utils.get_lst_from_rank0 = lambda numbers: numbers
    zero_utils.assert_lst_len_same_as_other_ranks = lambda numbers: None
