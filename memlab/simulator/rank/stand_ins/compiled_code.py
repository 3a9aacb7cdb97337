"""The code that torch.compile generates: its buffers are requested through the dispatcher, and its kernels are counted.

Inductor writes a Python function for each graph. It requests and frees all memory of the graph, and launches kernels of
Triton, which are not compiled here and write nothing.
"""

import functools
import json
import linecache
import re
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memlab.simulator.rank import device
from memlab.simulator.rank.compiler_places import checked
from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(
        changes=checked(
            {
                "torch._C._dynamo.guards": _buffers,
                "torch._inductor.codegen.wrapper": _requests,
                "torch._inductor.runtime.benchmarking": _benchmarks,
                "torch._inductor.runtime.triton_heuristics": _kernels,
            }
        )
    )


_SOURCE = "  # for: "
"""Begins the comment behind a request in generated code: the module whose operation needs the memory, and the calls
that led to the operation, the innermost first."""


def _requests(wrapper: ModuleType, recorder: Recorder) -> None:
    """Add a comment to each request in the generated code: which module and which calls need the memory."""
    make = wrapper.PythonWrapperCodegen.make_buffer_allocation

    def with_source(self: Any, buffer: Any) -> str:
        if not isinstance(buffer, wrapper.ir.IRNode):  # scratch memory of a kernel
            return make(self, buffer)
        nodes = [node for node in (buffer.get_origin_node(), *buffer.get_origins()) if node and node.stack_trace]
        modules = nodes and (nodes[0].meta.get("nn_module_stack") or nodes[0].meta.get("fwd_nn_module_stack"))
        path = [*modules.values()][-1][0].partition("].")[2].removeprefix("module.") if modules else ""
        calls = _CALL.findall(nodes[0].stack_trace)[::-1] if nodes else []
        return f"{make(self, buffer)}{_SOURCE}{json.dumps([path, calls])}"

    wrapper.PythonWrapperCodegen.make_buffer_allocation = with_source


_CALL = re.compile(r'File "(.+)", line (\d+), in (.+)')


@functools.cache
def _source(file: str, line: int) -> tuple[str, list[tuple[str, int, str]]]:
    """Read what needs the memory that a line of generated code requests."""
    module, calls = json.loads(linecache.getline(file, line).partition(_SOURCE)[2] or '["", []]')
    return module, [(path, int(number), function) for path, number, function in calls]


def _buffers(guards: ModuleType, recorder: Recorder) -> None:
    """Make buffers, and views of them, through the dispatcher, where Inductor calls C++ functions."""
    of_real_tensor = guards._reinterpret_tensor

    def empty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        caller = sys._getframe(1)
        with recorder.sites.in_graph(*_source(caller.f_code.co_filename, caller.f_lineno)):
            made = torch.empty_strided(size, stride, dtype=dtype, device=device.NAME)
        recorder.values.forget(made)  # a kernel writes it, not the program
        return made

    def reinterpret(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor):
            return of_real_tensor(tensor, size, stride, offset)
        with torch.no_grad():
            return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    guards._empty_strided_cuda, guards._reinterpret_tensor = empty, reinterpret


class _Compiled:
    """A Triton kernel that was not compiled. Inductor's own autotuner launches it, to choose a configuration, too."""

    kernel = SimpleNamespace(n_regs=None, hash=64 * "0")

    def __init__(self, autotuner: Any, config: Any, recorder: Recorder):
        self.config, self._recorder = config, recorder
        self._name = autotuner.inductor_meta.get("kernel_name", "triton")
        self._mutated = autotuner.inductor_meta.get("mutated_arg_names", ())
        self._parameters = [name for name, kind in autotuner.triton_meta["signature"].items() if kind != "constexpr"]

    def make_launcher(self) -> Callable[..., None]:
        def launch(*args: Any, stream: int, **options: Any) -> None:
            given = [(name, each) for name, each in zip(self._parameters, args, strict=False) if _is_tensor(each)]
            both = [each for name, each in given if name.startswith("in_out_ptr")]
            self._recorder.counter.library_call(self._name, [*(each for _, each in given), *both])
            for name, each in given:
                if name in self._mutated or name.startswith(("out_ptr", "in_out_ptr")):
                    self._recorder.values.forget(each)

        launch.config, launch.store_cubin = self.config, False
        launch.n_regs = launch.n_spills = launch.shared = launch.cache_hash = None
        return launch


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _kernels(heuristics: ModuleType, recorder: Recorder) -> None:
    heuristics.CachingAutotuner._precompile_config = functools.partialmethod(_Compiled, recorder=recorder)


def _benchmarks(benchmarking: ModuleType, recorder: Recorder) -> None:
    """Record the memory of a benchmark: what a call of the kernel takes, and the buffer that empties the L2 cache."""

    def run_twice(benchmarker: Any, function: Callable[[], Any], **options: Any) -> float:
        torch.cuda.synchronize()
        function()
        buffer = torch.empty(benchmarker.L2_cache_size // 4, dtype=torch.int, device=device.NAME)
        function()
        del buffer
        torch.cuda.synchronize()
        return 1.0

    benchmarking.InductorBenchmarker.benchmark_gpu = run_twice
