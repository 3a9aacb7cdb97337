"""What torch's allocator held when a request failed, and who owned it: kept without any recording.

Nothing listens to the allocator. torch calls an observer when a request has failed, after the allocator has given its
free segments back. What the observer then writes has the form of a recorded history (memory_history.py) whose only
action is the failed request.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import dropwhile, islice
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, NamedTuple

import torch

from . import model_tree, snapshot_files
from .driver_readings import DriverReadings
from .nested_tensors import tensors_in
from .own_errors import contained
from .owner import BUCKETS, GRADIENTS, MASTER, Owner, to_json
from .ownership import Ownership
from .phases import TimedPiece

ATTRIBUTES = {
    "fp32_partitioned_groups_flat": MASTER,
    "fp32_groups_gradients_flat": GRADIENTS,
    "grad_partitions_flat_buffer": GRADIENTS,
    "grads_in_partition": GRADIENTS,
    "averaged_gradients": GRADIENTS,
    "all_grad_tensors": GRADIENTS,
    "ipg_buckets": BUCKETS,
}
"""Attribute of a ZeRO optimizer (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py; bf16_optimizer.py) -> kind of its
tensors."""


SNAPSHOT, MARKS = ".out_of_memory.pickle", ".out_of_memory.json"
"""Files of a rank: rankN.out_of_memory.pickle, rankN.out_of_memory.json."""

LAST_PARTS = 60
"""Parts of the run that are remembered: those of a few steps."""

DEEPEST = 200
"""Most frames of the stack that are kept, the innermost ones."""

EVERYTHING = "everything"
"""Call of the reading of the driver's figure: all that ran since the process began."""

_OWN = str(Path(__file__).parent)
_MODULE_CALL = torch.nn.Module.__call__.__code__


class FailedRequest(NamedTuple):
    """What torch tells its observer, in bytes. ``nbytes``: what the allocator requested from the device, which gives it
    segments of at least 2 MiB. ``limit``: the most that the allocator may hold. ``free``: on the device."""

    device: int
    nbytes: int
    limit: int
    free: int

    def available(self) -> int:
        """Return the bytes that the allocator could still take from the device."""
        reserved = torch._C._cuda_memoryStats(self.device)["reserved_bytes"]["all"]["current"]
        return max(0, min(self.free, self.limit - reserved))


class OutOfMemoryKeeper:
    """Keeps the last out-of-memory of this process, and writes it into the files :data:`SNAPSHOT` and :data:`MARKS`.

    ``place``: returns the path of the rank's file.
    """

    def __init__(self, place: Callable[[], Path]):
        self._place = place
        self._parts: deque[dict[str, Any]] = deque(maxlen=LAST_PARTS)  # sizes in bytes, times in seconds of the epoch
        self._unwritten: tuple[dict[str, Any], dict[str, Any]] | None = None  # snapshot and marks

    def piece_ends(self, phase: str | None, step: int | None, piece: TimedPiece) -> None:
        """Remember a part of the run that is over. Parts outside the phases are left out."""
        now = piece.reading
        if phase is not None and now.end_allocated_bytes is not None:
            part = {"phase": phase, "step": step, "ended_at": time.time(), "allocated": now.end_allocated_bytes}
            peaks = {"peak_allocated": now.peak_allocated_bytes or 0, "peak_reserved": now.peak_reserved_bytes or 0}
            self._parts.append(part | peaks)

    def forget_parts(self) -> None:
        """Forget the parts of the run so far: another one begins in this process."""
        self._parts.clear()

    @contained
    def keep(self, request: FailedRequest, phase: str | None, step: int | None, where: str | None) -> None:
        """Note what the allocator holds, in place of an earlier out-of-memory. Call it from torch's observer.

        ``phase``, ``step``, ``where``: of the part of the run that requests, and the line of the user's script.
        """
        now = time.time_ns() // 1000
        ownership = Ownership(_optimizers, snapshot_files.address)
        ownership.search()
        owners = ownership.now()
        _add_deepspeed_buffers(owners)
        marks = {
            "device": request.device,
            "first_piece": 0,
            "pieces": [{"phase": phase, "step": step, "where": where, "ends_phase": False}],
            "last_parts": list(self._parts),
            "owners": to_json({0: owners}),
            "outside": _outside(phase),
        }
        snapshot = snapshot_files.take()
        module = _running_module()
        failed = {
            "action": "oom",
            "size": request.nbytes,
            "device_free": request.available(),
            "stream": torch._C._cuda_getCurrentRawStream(request.device),
            "time_us": now,
            "frames": _frames(),
            "user_metadata": f"0|{'' if module is None else ownership.name_of(module)}",
        }
        traces = snapshot["device_traces"]  # those of a script that records by itself are the script's own
        snapshot["device_traces"] = [[failed] if device == request.device else [] for device in range(len(traces))]
        self._unwritten = snapshot, marks

    @contained
    def end(self) -> None:
        """Write what was noted since the last call, in place of what was written before."""
        noted, self._unwritten = self._unwritten, None
        if noted is not None:
            snapshot_files.write(self._place(), (SNAPSHOT, MARKS), *noted)


def _optimizers() -> list[torch.optim.Optimizer]:
    """Find the optimizers of the process, without one that is just being made."""
    return [each for each in model_tree.objects_of(torch.optim.Optimizer) if hasattr(each, "param_groups")]


@contained
def _add_deepspeed_buffers(owners: dict[int, Owner]) -> None:
    """Add to address -> owner what has no owner so far, named after the optimizer's attribute. Another version of
    DeepSpeed may hold its buffers otherwise: then they get no name."""
    optimizers = getattr(sys.modules.get("deepspeed.runtime.base_optimizer"), "ZeROOptimizer", None)
    for optimizer in [] if optimizers is None else model_tree.objects_of(optimizers):
        for name, kind in ATTRIBUTES.items():
            held = vars(optimizer).get(name)
            if held and name == "ipg_buckets":  # objects by dtype, which hold their buffers
                held = [bucket.buffer for bucket in held.values()]
            for tensor in tensors_in(held):
                if (address := snapshot_files.address(tensor)) is not None:
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    owners.setdefault(address, Owner(kind, "", name, dtype, True))


def _outside(phase: str | None) -> dict[str, Any]:
    """Read the driver's figure, in the form that a recorded history has it. What was in use before is not known."""
    driver = DriverReadings()
    driver.begin()
    driver.read("", EVERYTHING)
    driver.name_phase(phase)
    readings = driver.to_json()
    for device in readings["devices"].values():
        device["before"] = None
    return readings


def _stack() -> Iterator[FrameType]:
    """Yield the frames of this thread, the innermost first, without those of the observer.

    No variable of the observer keeps one of the observer's own frames: such a circle would keep the whole stack, with
    the tensors of the script, until Python collects garbage.
    """
    frames = (frame for frame, _ in walk_stack(sys._getframe()))
    return dropwhile(lambda each: each.f_code.co_filename.startswith(_OWN), frames)


def _frames() -> list[dict[str, Any]]:
    """Return the stack as torch's history has it; of a backward, with the node of autograd that runs."""
    found = [
        {"filename": frame.f_code.co_filename, "line": frame.f_lineno, "name": frame.f_code.co_name}
        for frame in islice(_stack(), DEEPEST)
    ]
    node = torch._C._current_autograd_node()
    if node is not None:
        found.append({"filename": "??", "line": 0, "name": f"torch::autograd::{node.name()}::apply()"})
    return found


def _running_module() -> torch.nn.Module | None:
    """Return the innermost module whose forward runs in this thread.

    Only the frames of ``Module.__call__`` are looked into: before Python 3.13 a look copies a frame's variables, and in
    other frames these may be tensors that the script is about to free.
    """
    return next((frame.f_locals["self"] for frame in _stack() if frame.f_code is _MODULE_CALL), None)
