"""torch.compile: Dynamo, AOTAutograd and Inductor really run, and the code that they generate runs on fake tensors.

This file changes the compiler so that it runs without a GPU; compiled_code.py has what its code does, and
rank/compiler_places.py all places of the compiler that the two files change.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer
from torch.utils._python_dispatch import _disable_current_modes

import memlab
from memlab.meters.where import user_file
from memlab.simulator import graph_cache
from memlab.simulator.rank import device
from memlab.simulator.rank.compiled_values import OnTheHost, with_values
from memlab.simulator.rank.compiler_places import check_compiler, checked
from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn
from memlab.simulator.rank.unpredictable import UnpredictableError

_STATE_OF_ALLOCATOR = "_cuda_CUDAAllocator_AllocatorState"
"""Class of ``torch._C`` that the compiler imports for optimizers, though it uses it for CUDA graphs alone."""


def stand_in(gpu: GpuModel) -> StandIn:
    def see_gpu(backends: ModuleType, recorder: Recorder) -> None:
        _triton_sees_the_gpu(backends, gpu)

    changes = {
        "torch._dynamo.device_interface": _devices,
        "torch._dynamo.eval_frame": _without_global_hooks,
        "torch._dynamo.trace_rules": _memlab_is_not_compiled,
        "torch._dynamo.variables.optimizer": _states_of_optimizers,
        "torch._inductor.codecache": _kept_graphs,
        "torch._inductor.compile_fx": _graphs,
        "torch._inductor.config": _in_this_process,
        "torch._inductor.constant_folding": _constants_on_the_host,
        "torch._inductor.fx_passes.pad_mm": _padding,
        "torch._subclasses.fake_tensor": _no_constants_on_the_gpu,
        "torch.fx.experimental.proxy_tensor": _constants_of_graphs,
        "triton.backends": see_gpu,
    }
    return StandIn(changes={"torch": _compile, **checked(changes)})


# --- what is compiled


def _compile(torch_: ModuleType, recorder: Recorder) -> None:
    """Let the compiler run. Functions of libraries are compiled when they are called: most never are, and the compiler
    takes two seconds to import."""
    torch_compile = torch.compile

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile_, **options)
        owner = getattr(model, "__self__", model)
        if isinstance(owner, torch.nn.Module | torch.optim.Optimizer) or user_file(sys._getframe(1).f_code.co_filename):
            check_compiler(options.get("backend", "inductor"))
            return torch_compile(model, **options)
        return _when_called(model, options)

    def _when_called(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
        @functools.cache
        def compiled() -> Callable[..., Any]:
            check_compiler(options.get("backend", "inductor"))
            return torch_compile(function, **options)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return compiled()(*args, **kwargs)

        called._torchdynamo_inline = function  # a compiled caller takes it into its own graph
        return called

    torch.compile = compile_
    if not hasattr(torch._C, _STATE_OF_ALLOCATOR):  # a build for CPUs
        setattr(torch._C, _STATE_OF_ALLOCATOR, type(_STATE_OF_ALLOCATOR, (), {}))


# --- Dynamo


_HOOKS = (
    modules._global_forward_pre_hooks,
    modules._global_forward_hooks,
    modules._global_forward_hooks_always_called,
    optimizer._global_optimizer_pre_hooks,
    optimizer._global_optimizer_post_hooks,
)


def _without_global_hooks(eval_frame: ModuleType, recorder: Recorder) -> None:
    """Hide memlab's own hooks of modules and optimizers while compiled code runs: Dynamo would trace and guard them.
    Those of a measured run are traced and do nothing."""
    context = eval_frame._TorchDynamoContext
    compiled = context.__call__

    def call(self: Any, function: Any) -> Any:
        out = compiled(self, function)
        return out if isinstance(out, torch.nn.Module | type) else without_hooks(out)

    def without_hooks(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **options: Any) -> Any:
            own = {key for hooks in _HOOKS for key, hook in hooks.items() if _is_own(hook)}
            hidden = [(hooks, key, hooks[key]) for hooks in _HOOKS for key in own & hooks.keys()]
            for hooks, key, _ in hidden:
                del hooks[key]
            try:
                return function(*args, **options)
            finally:
                for hooks, key, hook in hidden:
                    hooks[key] = hook

        return called

    context.__call__ = call


def _is_own(hook: Any) -> bool:
    return getattr(hook, "__module__", "").startswith("memlab.")


def _devices(device_interface: ModuleType, recorder: Recorder) -> None:
    """Use simulated GPUs also where the compiler was imported before memlab changed torch, as by TORCH_LOGS."""
    interface = device_interface.CudaInterface
    interface.exchange_device = staticmethod(torch.cuda._exchange_device)
    interface.maybe_exchange_device = staticmethod(torch.cuda._maybe_exchange_device)
    interface.get_raw_stream = staticmethod(device.current_stream)


def _memlab_is_not_compiled(trace_rules: ModuleType, recorder: Recorder) -> None:
    """Compile none of memlab's functions. Attention becomes a node of the graph, which chooses its kernel later."""
    trace_rules.SKIP_DIRS.append(f"{Path(memlab.__file__).parent}/")
    trace_rules._recompile_re()
    trace_rules._allowed_callable_ids.add(id(torch.nn.functional.scaled_dot_product_attention))


def _states_of_optimizers(variables: ModuleType, recorder: Recorder) -> None:
    """Record the states of an optimizer, which Dynamo lets it make while it traces ``step``."""
    call_method = variables.OptimizerVariable.call_method

    def call(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name != "_init_group":
            return call_method(self, tx, name, args, kwargs)
        with recorder:
            return call_method(self, tx, name, args, kwargs)

    variables.OptimizerVariable.call_method = call


# --- Inductor, while it compiles


def _graphs(compile_fx: ModuleType, recorder: Recorder) -> None:
    """Give results their values. Refuse what keeps memory of its own, or chooses kernels by their measured time."""
    compile_whole, compile_graph = compile_fx.compile_fx, compile_fx._compile_fx_inner

    @functools.wraps(compile_whole)
    def compile_(model: Any, *args: Any, **options: Any) -> Any:
        if options.get("config_patches"):  # then it calls itself
            return compile_whole(model, *args, **options)
        _note_source(model)
        give_values = with_values(model, recorder.values)
        return give_values(compile_whole(model, *args, **options))

    @functools.wraps(compile_graph)
    def checked(*args: Any, **options: Any) -> Any:
        config = compile_fx.config
        refused = {
            'mode="reduce-overhead"': config.triton.cudagraphs,
            'mode="max-autotune"': config.max_autotune or config.max_autotune_gemm,
            "cpp_wrapper": config.cpp_wrapper,
            "freezing": config.freezing,
        }
        for name, is_on in refused.items():
            if is_on:
                raise UnpredictableError(f"torch.compile with {name} is not predicted. Predict with its default mode")
        return compile_graph(*args, **options)

    compile_fx.compile_fx, compile_fx._compile_fx_inner = compile_, checked


def _note_source(model: torch.fx.GraphModule) -> None:
    """Give two graphs different keys in the cache if they were made of different lines of the script: the generated
    code names these lines. A key has the lines of all graphs before it in this process, because the graph for a
    backward is compiled after others."""
    config = torch.compiler.config
    lines = "".join(node.stack_trace or "" for node in model.graph.nodes)
    config.cache_key_tag = sha256(f"{config.cache_key_tag}{lines}".encode()).hexdigest()


def _in_this_process(config: ModuleType, recorder: Recorder) -> None:
    """Start no processes that would compile kernels. Keep graphs for later predictions, but not the best configurations
    of kernels: each prediction is of a first run, which looks for them."""
    graph_cache.use()
    config.compile_threads, config.autotune_local_cache = 1, False
    made_of_data = dict.fromkeys(("torch.tensor", "torch.as_tensor", "torch.asarray"), "")
    config.unsafe_marked_cacheable_functions |= made_of_data  # functions in Python here, and of C++ in torch


def _no_constants_on_the_gpu(fake_tensor: ModuleType, recorder: Recorder) -> None:
    """Compute no constants on the GPU while graphs are traced: torch's own switch for machines without one."""
    fake_tensor.FakeTensorMode.avoid_device_init = True


def _constants_on_the_host(constant_folding: ModuleType, recorder: Recorder) -> None:
    """Fold constants, tensors of one element whose value Inductor reads, on the host."""
    run = constant_folding.ConstantFolder.run

    def run_on_the_host(folder: Any) -> Any:
        with OnTheHost():
            return run(folder)

    constant_folding.ConstantFolder.run = run_on_the_host


def _constants_of_graphs(proxy_tensor: ModuleType, recorder: Recorder) -> None:
    """Compute the constants of a graph, such as ``torch.tensor([], device="cuda")``, on the host."""
    unset = proxy_tensor.unset_fake_temporarily

    @contextmanager
    def unset_on_the_host() -> Iterator[Any]:
        with unset() as mode, OnTheHost():
            yield mode

    proxy_tensor.unset_fake_temporarily = unset_on_the_host


def _padding(pad_mm: ModuleType, recorder: Recorder) -> None:
    """Record the matrices that Inductor multiplies to find out whether padding is faster. It is taken to be faster.

    Each process measures anew, as a first run does.
    """
    answers = _Answers()

    @contextmanager
    def recorded() -> Iterator[None]:
        with _disable_current_modes(), recorder:
            yield

    def is_faster(key: str, ori_time: float, pad_time: float) -> bool:
        recorder.assumptions.add("a compiled matrix product with padded sizes was taken as faster")
        pad_mm.set_cached_should_pad(key, True)
        return True

    pad_mm.no_dispatch, pad_mm.is_padded_faster, pad_mm.get_pad_cache = recorded, is_faster, lambda: answers


class _Answers:
    """What was measured in this process, in place of torch's file."""

    asked: ClassVar[list[str]] = []
    """Keys of the measurements that the next graph depends on."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def lookup(self, key: str) -> Any:
        self.asked.append(key)
        return self._known.get(key)

    def set_value(self, key: str, value: Any) -> None:
        self._known[key] = value


def _kept_graphs(codecache: ModuleType, recorder: Recorder) -> None:
    """Keep no graph that depends on measurements: a prediction that finds the graph would not measure again, and would
    lack the memory of that."""
    keep = codecache.FxGraphCache._save_graph

    def keep_unless_measured(*args: Any, **options: Any) -> None:
        if not _Answers.asked:
            keep(*args, **options)
        _Answers.asked.clear()

    codecache.FxGraphCache._save_graph = staticmethod(keep_unless_measured)


def _triton_sees_the_gpu(backends: ModuleType, gpu: GpuModel) -> None:
    from triton.backends.compiler import GPUTarget

    major, minor = gpu.capability

    class Driver:
        """What Inductor asks the driver of Triton."""

        is_active = classmethod(lambda cls: True)

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 10 * major + minor, 32)

        def get_current_device(self) -> int:
            return device.current()

        def get_current_stream(self, index: int | None = None) -> int:
            return device.current_stream()

    nvidia = backends.backends["nvidia"]
    backends.backends["nvidia"] = type(nvidia)(compiler=nvidia.compiler, driver=Driver)
