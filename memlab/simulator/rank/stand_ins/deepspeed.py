"""DeepSpeed's compiled operators, which are only counted, ZeRO-3's comparisons of ranks, which are skipped, ZenFlow's
optimizer, which has no process, and the free memory of a GPU, which is that of the simulated one.

The operators write into existing tensors, so no allocation is missed.
"""

import subprocess
from collections.abc import Callable, Iterator
from itertools import chain
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from memlab.meters.nested_tensors import tensors_in
from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(
        changes={
            "deepspeed.comm.comm": _have_an_address,
            "deepspeed.accelerator.cuda_accelerator": _ask_no_driver,
            "deepspeed.ops.op_builder.builder": _build_nothing,
            "deepspeed.runtime.zenflow.zenflow_utils": _optimize_in_no_process,
            "deepspeed.runtime.zero.utils": _compare_nothing,
        }
    )


def _ask_no_driver(cuda_accelerator: ModuleType, recorder: Recorder) -> None:
    """Read the free memory from the simulated GPU. DeepSpeed asks NVIDIA's driver for it, where there is one."""
    cuda_accelerator.CUDA_Accelerator.available_memory = lambda self, index=None: torch.cuda.mem_get_info(index)[0]


def _have_an_address(comm: ModuleType, recorder: Recorder) -> None:
    """Let DeepSpeed ask MPI for the ranks where the only address is the loopback device's, as in a sandbox: it takes
    the first word of ``hostname -I``, which leaves that device out."""
    discover = comm.mpi_discovery

    def mpi_discovery(*arguments: Any, **options: Any) -> None:
        with mock.patch.object(subprocess, "check_output", lambda words: b"127.0.0.1"):
            discover(*arguments, **options)

    comm.mpi_discovery = mpi_discovery


def _build_nothing(builder: ModuleType, recorder: Recorder) -> None:
    builder.OpBuilder.load = lambda self, verbose=True: _Extension(recorder)
    builder.installed_cuda_version = lambda name="": tuple(map(int, torch.version.cuda.split(".")))


def _compare_nothing(utils: ModuleType, recorder: Recorder) -> None:
    """Skip ZeRO-3's comparison of the order of modules with rank 0: all ranks are equal.

    It is made once, in the second step, which predictions take for all later ones.
    """
    utils.get_lst_from_rank0 = lambda numbers: numbers
    utils.assert_lst_len_same_as_other_ranks = lambda numbers: None


def _optimize_in_no_process(zenflow_utils: ModuleType, recorder: Recorder) -> None:
    """Start no process for ZenFlow's optimizer, which works on the host: each of its steps is over at once. Its states,
    four for each parameter, take the host's memory."""
    start = zenflow_utils.start_optimizer_process

    def start_optimizer_process(optimizer: Any) -> None:
        with mock.patch("multiprocessing.get_context") as get_context:
            start(optimizer)
        optimizer.zf_op.zenflow_adam_wait = lambda *arguments: True
        groups = get_context.return_value.Process.call_args.kwargs["args"][0]
        optimizer.memlab_states = [torch.zeros_like(parameter) for parameter, *_ in groups for _ in range(4)]

    zenflow_utils.start_optimizer_process = start_optimizer_process


class _Extension:
    """A compiled extension whose functions do nothing but count."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*args, **options) -> int:
            self._recorder.library_call(name, chain(tensors_in(args), _updated(name, args)))
            return 0

        return function


def _updated(function: str, args: tuple) -> Iterator[torch.Tensor]:
    """Yield the tensors that an optimizer's function writes as well as reads.

    Source: ``multi_tensor_adam.cu`` (lists of gradients, parameters and moments) and ``cpu_adam_impl.cpp`` (last
    arguments: parameter, gradient and moments) in DeepSpeed's ``csrc/adam``, and their counterparts in ``csrc/lion``.
    """
    if function.startswith(("multi_tensor_adam", "multi_tensor_lion")):
        yield from tensors_in(args[2][1:])
    elif function.startswith(("adam_update", "lion_update")):
        parameter, _, *moments = tensors_in(args)
        yield from (parameter, *moments)
