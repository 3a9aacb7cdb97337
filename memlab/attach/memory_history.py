"""Recorder of torch's memory history with what explains it: the part of the run, the module, and who owns the memory.

Each action of the allocator carries a label, "number of the piece|module". What a piece of the run was is noted beside
the history when the piece ends. The history ends by itself with the first out-of-memory.
"""

import json
import os
import pickle
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from . import model_tree
from .own_errors import contained
from .owner import Owner, to_json
from .ownership import Ownership

MOST_ENTRIES = 2_000_000
"""Most actions that are kept, the last ones. A step of a model of 8B parameters has some 30,000; each takes about 300
bytes in the file."""

SNAPSHOT, MARKS = ".memory_snapshot.pickle", ".memory_marks.json"
"""Files of a rank: rankN.memory_snapshot.pickle, rankN.memory_marks.json."""


class MemoryHistory:
    """The history of one process, from its first use of the GPU until :meth:`end`.

    It is written beside the rank's file, whose path ``place`` returns. ``optimizers``: returns those of the process.
    """

    def __init__(self, place: Callable[[], Path], optimizers: Callable[[], Iterable[torch.optim.Optimizer]]):
        self._place = place
        self._ownership = Ownership(optimizers, _address)
        self._pieces: list[dict[str, Any]] = []
        self._owners: dict[int, dict[int, Owner]] = {}  # number of the piece that has ended -> address -> owner
        self._modules = [""]
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._records = False
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        torch.cuda._lazy_call(self._begin)  # a program that never uses a GPU is not made to

    @contained
    def _begin(self) -> None:
        # Stacks of allocations alone: to collect one while an exception is under way, as freeing memory then would,
        # swallows the exception by which a checkpoint without reentry ends its recomputation.
        torch.cuda.memory._record_memory_history(context="alloc", stacks="all", max_entries=MOST_ENTRIES)
        torch._C._cuda_attach_out_of_memory_observer(lambda *_: self.end())
        self._records = True
        self._label()

    @contained
    def end(self) -> None:
        """Write the history so far, and stop recording."""
        if not self._records:
            return
        self._records = False
        for hook in self._hooks:
            hook.remove()
        snapshot = _symbolized_snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        place = self._place()
        with place.with_suffix(SNAPSHOT).open("wb") as file:
            pickle.dump(snapshot, file, protocol=4)
        marks = {
            "device": torch.cuda.current_device(),
            "folder": os.getcwd(),
            "pieces": self._pieces,
            "owners": to_json(self._owners),
        }
        place.with_suffix(MARKS).write_text(json.dumps(marks), "utf-8")

    @contained
    def piece_ends(self, phase: str | None, step: int | None, where: str | None, ends_phase: bool) -> None:
        """Note what the part of the run that ends here was.

        ``step``: its optimizer step, from 1. ``where``: the line of the user's script at its beginning. ``ends_phase``:
        whether the phase is over.
        """
        if not self._records:
            return
        if ends_phase and (owners := self._ownership.after(phase)):
            self._owners[len(self._pieces)] = owners
        free, total = torch.cuda.mem_get_info()
        outside = total - free - torch.cuda.memory_reserved()
        facts = {"phase": phase, "step": step, "where": where, "ends_phase": ends_phase, "outside_bytes": outside}
        self._pieces.append(facts)
        self._label()

    @contained
    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        if len(self._modules) == 1 and module not in self._names:
            self._names[module] = ""
            self._names.update((part, name) for name, part in model_tree.unwrapped(module)[0].named_modules())
        self._modules.append(self._names.get(module, self._modules[-1]))
        self._label()

    @contained
    def _leave(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if len(self._modules) == 1:  # another hook failed before this module was entered
            return
        name = self._modules.pop()
        self._label()
        values = (
            outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, tuple) else (outputs,)
        )
        for value in values:
            node = getattr(value, "grad_fn", None)
            if node is not None:  # backward enters the module with the gradient of its output, in a thread of its own
                node.register_prehook(lambda _: self._label(name))

    def _label(self, module: str | None = None) -> None:
        if self._records:
            text = f"{len(self._pieces)}|{self._modules[-1] if module is None else module}"
            torch.cuda.memory._set_memory_metadata(text)


def _address(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's memory on the GPU; ``None`` if it has none."""
    return tensor.untyped_storage().data_ptr() or None if tensor.is_cuda else None


def _symbolized_snapshot() -> dict[str, Any]:
    """Return torch's snapshot, with the names of C++ functions looked up the fast way: by the dynamic linker."""
    variable = "TORCH_SYMBOLIZE_MODE"
    before = os.environ.get(variable)
    os.environ.setdefault(variable, "dladdr")
    try:
        return torch.cuda.memory._snapshot()
    finally:
        if before is None:
            del os.environ[variable]
