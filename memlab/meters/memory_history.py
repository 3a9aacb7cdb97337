"""Recorder of torch's memory history with what explains it: the part of the run, the module, and who owns the memory.

Each action of the allocator carries a label, "number of the piece|module". What a piece of the run was is noted beside
the history when the piece ends, and at each new label the driver's figure is read (driver_readings.py).

:meth:`MemoryHistory.keep` writes the history of the chosen steps. Recording can go on after it, for the last actions
before an out-of-memory: then the history until the request that failed takes the place of the one before.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from . import collectives, import_hook, snapshot_files
from .driver_readings import DriverReadings
from .listeners.wrap import listening
from .out_of_memory import FailedRequest
from .own_errors import contained
from .owner import Owner, to_json
from .ownership import Ownership
from .running_modules import RunningModules

MOST_ENTRIES = 2_000_000
"""Most actions that are kept of the chosen steps, the last ones. A step of a model of 8B parameters has some 30,000;
each takes about 300 bytes in the file."""

LAST_ENTRIES = 200_000
"""Most actions that are kept after the chosen steps: a few steps before an out-of-memory."""

MOST_PIECES = 10_000
"""Most parts of the run that are kept, the last ones: more than those of ``LAST_ENTRIES`` actions."""

MAKE_CONTEXT = ((torch.cuda, "set_device"), (torch.nn.Module, "_apply"))
"""Functions whose first call makes the CUDA context and runs no kernel. Module.to calls ``_apply`` for each module."""

PARAMETER, CONVOLUTION, TRITON_KERNEL = "parameter", "convolution", "Triton kernel"
"""What ran before a reading: the request for a parameter's memory, which makes the context of a model that is built on
the GPU; a convolution; the loading of a Triton kernel, whose name follows."""

SNAPSHOT, MARKS = ".memory_snapshot.pickle", ".memory_marks.json"
"""Files of a rank: rankN.memory_snapshot.pickle, rankN.memory_marks.json."""


class _Backward(threading.local):
    """``entered``: number of a piece, and the module that made the node of autograd that this thread ran last in it."""

    entered = (-1, "")


class MemoryHistory:
    """The history of one process, from its first use of the GPU until :meth:`keep`, or the first out-of-memory.

    Create it before the process uses a GPU. It is written beside the rank's file, whose path ``place`` returns.
    ``optimizers``: returns those of the process. ``at``: returns phase, step (from 1) and line of what runs now.
    ``goes_on``: whether to record the last actions after :meth:`keep`, for an out-of-memory.
    """

    def __init__(
        self,
        place: Callable[[], Path],
        optimizers: Callable[[], Iterable[torch.optim.Optimizer]],
        at: Callable[[], tuple[str | None, int | None, str | None]],
        goes_on: bool = False,
    ):
        self._place, self._at, self._goes_on = place, at, goes_on
        self._ownership = Ownership(optimizers, snapshot_files.address)
        self._driver = DriverReadings()
        self._pieces: deque[dict[str, Any]] = deque(maxlen=MOST_PIECES)
        self._number = 0  # of the running piece
        self._owners: dict[int, dict[int, Owner]] = {}  # number of the piece that has ended -> address -> owner
        self._modules = RunningModules(entered=self._label, left=self._left)
        self._backward = _Backward()
        self._module = ""  # of the last label
        self.records = self._is_kept = False
        self._parameters = register_module_parameter_registration_hook(self._sees_parameter)
        collectives.watch(before=self._read, after=self._read)
        for owner, name in MAKE_CONTEXT:
            listening(owner, name, after=lambda *args, name=name, **kwargs: self._read(name))
        import_hook.after("triton.compiler.compiler", self._watch_triton)
        torch.cuda._lazy_call(self._begin)  # a program that never uses a GPU is not made to

    @contained
    def _begin(self) -> None:
        self._driver.begin()
        self._record(MOST_ENTRIES)
        self.records = True
        self._label()

    def _record(self, most_entries: int) -> None:
        # Stacks of allocations alone: to collect one while an exception is under way, as freeing memory then would,
        # swallows the exception by which a checkpoint without reentry ends its recomputation.
        torch.cuda.memory._record_memory_history(context="alloc", stacks="all", max_entries=most_entries)

    @contained
    def keep(self) -> None:
        """Write the history so far. From now on the last actions alone are recorded, or none."""
        if not self.records or self._is_kept:
            return
        self._is_kept = True
        try:
            self._write()
        finally:  # also on a full disk
            if self._goes_on:
                self._owners.clear()
                self._pieces.clear()
                torch.cuda.memory._record_memory_history(enabled=None)  # forgets the actions so far
                self._record(LAST_ENTRIES)
            else:
                self._stop()

    @contained
    def end(self) -> None:
        """Stop recording. Write the history unless it is kept."""
        if self.records:
            try:
                if not self._is_kept:
                    self._write()
            finally:
                self._stop()

    @contained
    def out_of_memory(self, request: FailedRequest) -> None:
        """Write the history until the request that has just failed, and stop recording. The script may go on.

        torch notes what was free on the device, also where the allocator was allowed less.
        """
        try:
            self._ownership.search()
            self._owners[self._number] = self._ownership.now()
            self._write(request)
        finally:
            self._stop()

    def _stop(self) -> None:
        self.records = False
        self._modules.stop()
        self._parameters.remove()
        torch.cuda.memory._record_memory_history(enabled=None)

    def _write(self, failed: FailedRequest | None = None) -> None:
        phase, step, where = self._at()
        self._read()
        self._driver.name_phase(phase)
        marks = {
            "device": torch.cuda.current_device(),
            "first_piece": self._number - len(self._pieces),
            "pieces": [*self._pieces, {"phase": phase, "step": step, "where": where, "ends_phase": False}],
            "owners": to_json(self._owners),
            "outside": self._driver.to_json(),
        }
        snapshot = snapshot_files.take()
        if failed is not None:
            entries = snapshot["device_traces"][failed.device]
            next(each for each in reversed(entries) if each["action"] == "oom")["device_free"] = failed.available()
        snapshot_files.write(self._place(), (SNAPSHOT, MARKS), snapshot, marks)

    @contained
    def piece_ends(self, phase: str | None, step: int | None, where: str | None, ends_phase: bool) -> None:
        """Note what the part of the run that ends here was.

        ``step``: its optimizer step, from 1. ``where``: the line of the user's script at its beginning. ``ends_phase``:
        whether the phase is over.
        """
        if not self.records:
            return
        if not self._is_kept and ends_phase and (owners := self._ownership.after(phase)):
            self._owners[self._number] = owners
        self._read()
        self._driver.name_phase(phase)
        self._pieces.append({"phase": phase, "step": step, "where": where, "ends_phase": ends_phase})
        self._number += 1
        self._label()

    @contained
    def _read(self, call: str | None = None) -> None:
        if self.records:
            self._driver.read(self._module, call)

    @contained
    def _sees_parameter(self, *_: Any) -> None:
        if self.records and not self._driver.has_context:
            self._read(PARAMETER)

    @contained
    def _watch_triton(self, compiler: Any) -> None:
        def loaded(_: Any, kernel: Any) -> None:
            self._read(f"{TRITON_KERNEL} {kernel.name}")

        listening(compiler.CompiledKernel, "_init_handles", before=lambda kernel: self._read(), after=loaded)

    def _left(self, module: str, nodes: Iterable[Any]) -> None:
        convolutions = [node for node in nodes if node.name().startswith("ConvolutionBackward")]
        if convolutions:
            self._read(CONVOLUTION)
        self._label()
        enters = partial(self._backward_enters, module)
        for node in nodes:
            node.register_prehook(enters)
        for node in convolutions:
            node.register_prehook(lambda _: self._read())
            node.register_hook(lambda *_: self._read(CONVOLUTION))

    @contained
    def _backward_enters(self, module: str, gradients: Any) -> None:
        """Backward runs in threads of its own, one for each GPU, which have labels of their own."""
        if self._backward.entered != (self._number, module):
            self._backward.entered = self._number, module
            self._label()

    def _label(self) -> None:
        if self.records:
            self._read()
            number, in_backward = self._backward.entered
            self._module = self._modules.in_forward or (in_backward if number == self._number else "")
            torch.cuda.memory._set_memory_metadata(f"{self._number}|{self._module}")
