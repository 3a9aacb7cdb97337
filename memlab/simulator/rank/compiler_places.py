"""The private places of torch's compiler that stand-ins change, and the versions of torch that they were tried with.

A stand-in changes a module of the compiler by a function of :func:`checked`. Where torch has another version, or a
place is not as expected, a script that calls ``torch.compile`` ends with one line. Other scripts go on, because
libraries import parts of the compiler and do not use them.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from types import ModuleType
from typing import Any

import torch

from memlab.simulator.rank.recorder import Recorder
from memlab.simulator.rank.unpredictable import UnpredictableError

TRIED = ("2.11", "2.13")
"""Versions of torch whose compiler this file was tried with."""

_PREDICT_WITHOUT = "Predict it without torch.compile (in TrainingArguments: --torch_compile false)"

_unexpected: list[str] = []
"""Names of places that are not as expected."""

Change = Callable[[ModuleType, Recorder], None]
"""Changes a module of the compiler after its import."""

PLACES: dict[str, dict[str, str]] = {
    "torch._C._dynamo.guards": {"_empty_strided_cuda": "", "_reinterpret_tensor": ""},
    "torch._dynamo.device_interface": {
        "CudaInterface.exchange_device": "",
        "CudaInterface.maybe_exchange_device": "",
        "CudaInterface.get_raw_stream": "",
    },
    "torch._dynamo.eval_frame": {"_TorchDynamoContext.__call__": "self fn"},
    "torch._dynamo.trace_rules": {"SKIP_DIRS": "", "_recompile_re": "", "_allowed_callable_ids": ""},
    "torch._dynamo.variables.optimizer": {"OptimizerVariable.call_method": "self tx name args kwargs"},
    "torch._inductor.codecache": {"FxGraphCache._save_graph": "key compiled_graph example_inputs local remote_cache"},
    "torch._inductor.codegen.wrapper": {"PythonWrapperCodegen.make_buffer_allocation": "self buffer"},
    "torch._inductor.compile_fx": {"compile_fx": "", "_compile_fx_inner": ""},
    "torch._inductor.config": {
        "compile_threads": "",
        "autotune_local_cache": "",
        "unsafe_marked_cacheable_functions": "",
        "triton.cudagraphs": "",
        "max_autotune": "",
        "max_autotune_gemm": "",
        "cpp_wrapper": "",
        "freezing": "",
    },
    "torch._inductor.constant_folding": {"ConstantFolder.run": "self"},
    "torch._inductor.fx_passes.pad_mm": {
        "no_dispatch": "",
        "is_padded_faster": "key ori_time pad_time",
        "get_pad_cache": "",
    },
    "torch._inductor.runtime.benchmarking": {
        "InductorBenchmarker.benchmark_gpu": "",
        "InductorBenchmarker.L2_cache_size": "",
    },
    "torch._inductor.runtime.triton_heuristics": {"CachingAutotuner._precompile_config": "self cfg"},
    "torch._subclasses.fake_tensor": {"FakeTensorMode.avoid_device_init": ""},
    "torch.fx.experimental.proxy_tensor": {"unset_fake_temporarily": ""},
    "triton.backends": {"backends": ""},
}
"""Module -> name in it -> the parameters that the function is to have; empty: not checked."""


def checked(changes: Mapping[str, Change]) -> dict[str, Change]:
    """Return the same changes, each of which first checks the places of its module.

    A module with a place that is not as expected is not changed.
    """
    return {module: partial(_change_if_as_expected, change) for module, change in changes.items()}


def _change_if_as_expected(change: Change, module: ModuleType, recorder: Recorder) -> None:
    for name, parameters in PLACES[module.__name__].items():
        try:
            found = attrgetter(name)(module)
            same = not parameters or [*inspect.signature(found).parameters] == parameters.split()
        except AttributeError:
            same = False
        if not same:
            _unexpected.append(f"{module.__name__}.{name}")
            return
    change(module, recorder)


def check_compiler(backend: Any) -> None:
    """Raise :class:`UnpredictableError` where the compiler cannot be followed. ``backend``: as of ``torch.compile``."""
    if backend in ("cudagraphs", "tensorrt", "torch_tensorrt", "openxla", "onnxrt", "tvm"):
        raise UnpredictableError(f"torch.compile's backend {backend} is not predicted. {_PREDICT_WITHOUT}")
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in TRIED:
        raise UnpredictableError(
            f"memlab follows the compiler of torch {' and '.join(TRIED)}, not of {version}. {_PREDICT_WITHOUT}"
        )
    if backend == "inductor" and find_spec("triton") is None:
        raise UnpredictableError(
            "torch.compile for a GPU needs triton, which is not installed. Install it: pip install triton"
        )
    if backend == "inductor":
        for module in PLACES:
            import_module(module)  # which checks its places
    if _unexpected:
        raise UnpredictableError(
            f"{_unexpected[0]} of torch {torch.__version__} is not as memlab knows it. {_PREDICT_WITHOUT}"
        )
