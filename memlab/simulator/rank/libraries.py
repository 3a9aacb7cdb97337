"""Notes what takes memory outside torch's allocator when it first runs: communicators, handles, attention's kernels."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch._ops import OpOverload

from memlab.meters.nested_tensors import tensors_in
from memlab.simulator.outside.appearances import ATTENTION, ATTENTION_BACKWARD, COLLECTIVE, COMMUNICATOR, Appearance
from memlab.simulator.rank import device
from memlab.simulator.trace.trace_format import Trace

_aten = torch.ops.aten
_ATTENTION = {
    _aten._scaled_dot_product_cudnn_attention.default: ATTENTION,
    _aten._scaled_dot_product_cudnn_attention_backward.default: ATTENTION_BACKWARD,
    _aten._scaled_dot_product_flash_attention.default: ATTENTION,
    _aten._scaled_dot_product_flash_attention_backward.default: ATTENTION_BACKWARD,
}
"""Operators whose kernels are large pieces of code, which the driver loads when they first run."""

FUNCTIONAL = "_c10d_functional"
"""Namespace of the collectives that return new tensors, which DTensor uses."""

META_IS_CUDA = frozenset({_aten._cudnn_rnn_flatten_weight.default})
"""Operators whose kernel for meta tensors is that for CUDA: ``aten/src/ATen/native/cudnn/RNN.cpp``."""


class Libraries:
    """What a process has used so far. ``connects_at_once``: whether groups are bound to a device, so that NCCL makes
    their communicators before their first collective. ``notes``: false when the recording has ended. ``current_gpu``:
    numbers the GPUs of a process."""

    def __init__(self, trace: Trace, current_gpu: Callable[[], object] = lambda: None):
        self._trace, self._current_gpu = trace, current_gpu
        self._seen: set[tuple[str, object]] = set()
        self._on_host: set[str] = set()  # groups that have no NCCL
        self.connects_at_once = False
        self.notes = True

    def note(self, what: str, key: object = None, cause: str = "", ranks: int = 0) -> None:
        """Note the first call with this ``what`` and ``key``. ``cause``, ``ranks``: see :class:`Appearance`."""
        if self.notes and (what, key) not in self._seen:
            self._seen.add((what, key))
            self._trace.appearances.append(Appearance(len(self._trace.events), what, cause, ranks))

    def operator(self, func: OpOverload, args: tuple) -> None:
        if func in _ATTENTION:
            self.note(_ATTENTION[func], self._current_gpu())
        elif func.namespace == FUNCTIONAL:
            self.collective(func, args)

    def made(self, group: Any, backend: str | None) -> None:
        """Note the communicator of a new group, if it is connected at once and this rank is in it."""
        if not isinstance(group, dist.ProcessGroup):
            return
        if backend == "gloo":
            self._on_host.add(group.group_name)
        elif self.connects_at_once:
            self._connect(group)

    def collective(self, func: OpOverload, args: tuple) -> None:
        """Note the first collective of a group on the device. A barrier of NCCL is one, too."""
        group = group_of(func, args)
        if group and (func._schema.name == "c10d::barrier" or any(map(device.is_on, tensors_in(args)))):
            self.runs_in(group)

    def runs_in(self, group: dist.ProcessGroup) -> None:
        if group.group_name not in self._on_host:
            self._connect(group)
            self.note(COLLECTIVE, group.group_name, _name(group), group.size())

    def _connect(self, group: dist.ProcessGroup) -> None:
        self.note(COMMUNICATOR, group.group_name, _name(group), group.size())


def group_of(func: OpOverload, args: tuple) -> dist.ProcessGroup | None:
    """Return the process group of a collective; ``None`` for an operator without one, as the wait for a collective."""
    for argument, group in zip(func._schema.arguments, args, strict=False):
        # Functional collectives have its name, or the group itself (PyTorch 2.13).
        if argument.name == "group_name" or "ProcessGroup" in str(argument.type):
            if isinstance(group, torch.ScriptObject):
                return dist.ProcessGroup.unbox(group)
            return _resolve_process_group(group) if isinstance(group, str) else group
    return None


def _name(group: dist.ProcessGroup) -> str:
    return group.group_desc if group.group_desc not in ("", "undefined") else "a group"
