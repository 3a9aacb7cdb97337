"""Measurement of one process of a command: its phases, its optimizer steps and how it ended.

Listeners (listeners/) call the methods below. None of them raises into the script, except the end that ``--steps`` asks
for: ``SystemExit(0)``.
"""

import gc
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import phases, stop
from .batches import BatchSize, BatchSizes, size_of
from .clock import Mark, mark
from .end_of_run import last_step
from .ending import Ending
from .growth import GrowthWatch
from .memory import Memory
from .optimizer_call import OptimizerCall
from .options import MeterOptions
from .out_of_memory import FailedRequest
from .own_errors import contained
from .process_peaks import PhasePeaks, ProcessPeaks
from .script_objects import ScriptObjects
from .session_callbacks import Callbacks
from .steps import Rows, Step
from .where import user_line

SAVE_EVERY_S = 10
"""Seconds after which the rank's file is written again at the end of a step."""


class Session:
    """Follows one process from event to event. ``is_simulated``: on a simulated GPU, which has no clock, and where the
    other ranks are not there."""

    def __init__(self, options: MeterOptions, memory: Memory):
        self.memory, self.callbacks, self.is_simulated = memory, Callbacks(), False
        self.begin_anew(options)

    def begin_anew(self, options: MeterOptions) -> None:
        """Forget what was measured, and measure from now on."""
        self.options = options
        self.last_step = options.steps  # the process ends after this optimizer step; None: when the script ends
        self.pid: int | None = os.getpid()  # None: nothing is measured any more
        self.thread: int | None = None  # the one that trains, once it has made an optimizer; until then any is heard
        self.started = time.time()
        self.timeline = phases.Timeline(self.memory, self._ended)
        self.figures = ProcessPeaks()
        self.ending = Ending()
        self.batches = BatchSizes()
        self.rows = Rows()
        self.growth = GrowthWatch(lambda: last_step(self.objects, self.trainer_runs, self.steps_done))
        self.step: Step | None = None  # None before the first forward
        self.steps_done = self.steps_skipped = self.steps_recorded = 0
        self.micro_batches = self.optimizer_calls = 0
        self.objects = ScriptObjects()
        self.facts: dict[str, Any] = {}  # what the script set (facts/)
        self.given: dict[str, Any] = {}  # figures of the rank's file that the script itself provides
        self.unknown: dict[str, str] = {}  # figures that the script could not provide -> the reason
        self.data_files: list[str] = []
        self.trainer_runs = False
        self._out_of_memory = threading.RLock()  # a signal's handler may run out of memory as well
        self._saved_at = 0.0
        self._evaluated: weakref.ref | None = None  # the module that a plain loop evaluates
        self._end: Mark | None = None  # of a step that has not been closed
        self._skipped = False
        self._call = OptimizerCall()
        self._read_ahead: deque[BatchSize] | None = None
        self._beside_since: Mark | None = None

    def start_over(self, options: MeterOptions) -> None:
        """Begin to measure the next training of the same model and engine. The allocator gives back its unused memory,
        and all peaks begin anew. Phases before the first step (model build, engine init) are kept; the first training
        has their time."""
        self.timeline.begin_base(None)
        before = dict(vars(self))
        self.begin_anew(options)
        for name in ("started", "timeline", "thread", "objects", "facts", "trainer_runs"):
            setattr(self, name, before[name])
        self.figures.start_over(before["figures"], has_trained=before["steps_done"] > 0)
        if before["steps_done"]:
            self.callbacks.starts_over()
        gc.collect()
        if self.memory.device is not None:
            torch.cuda.empty_cache()
        self.memory.turn()

    def begin_in_child(self) -> None:
        """Begin anew in a forked process, which may become a rank. A child of a rank stays unmeasured.

        The child forgets the marks of its parent, and CUDA ends a process that destroys an event of another one. So
        nothing is marked before the first step.
        """
        if self.pid is not None and not self.is_rank:
            self.begin_anew(self.options)

    def end(self) -> None:
        """Deactivate: the hooks stay installed and do nothing."""
        self.pid = None

    @property
    def is_active(self) -> bool:
        """Whether events come from the process and the thread that this session measures."""
        return os.getpid() == self.pid and self.thread in (None, threading.get_ident())

    @property
    def is_rank(self) -> bool:
        """Whether this process trains: it made an optimizer."""
        return self.thread is not None

    # --- phases

    @contextmanager
    def running(self, phase: str) -> Iterator[None]:
        """Give the time inside to a phase, unless it is a part of one that runs."""
        entered = self.enter(phase)
        try:
            yield
        except BaseException as error:
            self.fails(error)
            raise
        finally:
            if entered:
                self.leave()

    @contained
    def enter(self, phase: str) -> bool:
        """Begin a phase. Returns whether :meth:`leave` has to end it."""
        if not self.is_active:
            return False
        self._before_event(by=phase)
        if phase == phases.ENGINE_INIT:
            self.setting_up()
        if phase == phases.BACKWARD and self.is_rank:
            self._begin_training()
        entered = self.timeline.enter(phase)
        if entered and phase == phases.BACKWARD and self.step is not None:
            self.micro_batches += 1
            self.step.add_batch(self.batches.take())
        elif entered and phase in phases.BESIDE_STEPS and self.step is not None:
            self._beside_since = self._mark()
        return entered

    @contained
    def leave(self) -> None:
        phase = self.timeline.current
        self.timeline.leave()
        if phase in phases.BESIDE_STEPS and self.step is not None and self._beside_since is not None:
            self.step.beside.append((self._beside_since, self._mark()))
            self._beside_since = None

    def _before_event(self, by: str | None = None) -> None:
        """End what went on until this event: a step of several optimizers, an evaluation of a plain loop."""
        if self._call.was_left():
            self.leave()
        self._end_evaluation(by)
        if by != phases.OPTIMIZER_STEP:
            self.close_step()
            self.stop_if_asked()

    @contained
    def forward_begins(self, batch: Any = None) -> None:
        """Begin a forward. ``batch``: what the model is called with, if the listener sees it."""
        if not self.trains_now:
            return
        self._before_event()
        if self.timeline.stack:
            return
        if batch is not None and (self.batches.latest is None or self.trainer_runs):
            self.batches.used(batch)
        self.timeline.begin_base(phases.FORWARD)
        self._begin_training()

    @contained
    def loader_gave(self, batch: Any, size: BatchSize | None = None, samples: int | None = None) -> None:
        """Note a batch of a data loader. ``size``: what was measured before the batch went to the device. ``samples``:
        how many samples the loader chose for the batch."""
        if self._read_ahead is not None:
            self._read_ahead.append(size_of(batch, samples))
        elif self.trains_now:
            self.batches.given(batch, size or size_of(batch, samples))
            if not self.trainer_runs:  # Trainer fetches all batches of a step at once
                self.forward_begins()

    @contained
    def loss_begins(self, batch: Any) -> None:
        """Note the batch of which a Trainer computes the loss: what a subclass has prepared."""
        if self.trains_now:
            self.batches.used(batch)

    @contextmanager
    def reading_ahead(self, sizes: deque[BatchSize]) -> Iterator[None]:
        """Let the batches that loaders give out inside wait in ``sizes``: another loader gives them out later."""
        outer, self._read_ahead = self._read_ahead, sizes if self.is_active else self._read_ahead
        try:
            yield
        finally:
            self._read_ahead = outer

    @property
    def trains_now(self) -> bool:
        """Whether what a listener hears of can be a part of training."""
        return self.is_active and self.is_rank and torch.is_grad_enabled()

    @contained
    def setting_up(self) -> None:
        """Note that the model is built, and that what trains it is being made."""
        if self.is_active and not self.timeline.stack:
            if self.timeline.base == phases.MODEL_BUILD:
                self.timeline.begin_base(phases.ENGINE_INIT)
            elif self.timeline.base == phases.ENGINE_INIT:
                self.timeline.cut(phases.ENGINE_INIT)

    @contained
    def evaluation_begins(self, module: torch.nn.Module) -> None:
        """Note ``module.eval()``: an evaluation begins if the module is trained and no Trainer runs."""
        if self.step is None or not self.is_active or self.trainer_runs or self.timeline.beside_steps:
            return
        if self.objects.train(module) and self.enter(phases.EVALUATE):
            self._evaluated = weakref.ref(module)

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation runs. That of a plain loop has ended when its module trains again."""
        module = None if self._evaluated is None else self._evaluated()
        return self.timeline.current == phases.EVALUATE and not (module is not None and module.training)

    def _end_evaluation(self, by: str | None = None) -> None:
        """End an evaluation of a plain loop: the module trains again, or another phase begins."""
        if self._evaluated is None or self.timeline.current != phases.EVALUATE:
            return
        module = self._evaluated()
        if module is None or module.training or by not in (None, phases.GENERATE):
            self._evaluated = None
            self.leave()

    # --- steps

    @contained
    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        if os.getpid() == self.pid:
            self.thread = self.thread or threading.get_ident()
            self.objects.optimizers.add(optimizer)
            self.setting_up()

    @contained
    def optimizer_step_begins(self) -> None:
        """Begin ``optimizer.step()``, which may be a part of an engine's step, or of another optimizer's."""
        if self.is_active and phases.ENGINE_INIT not in self.timeline.stack and self.enter(phases.OPTIMIZER_STEP):
            self._call.begins()  # an engine of DeepSpeed makes the optimizer's states by a step of its own

    @contained
    def optimizer_step_ends(self) -> None:
        """End ``optimizer.step()``, and with it the step if it is no part of an engine's."""
        self.optimizer_calls += 1
        if self.is_active and self._call.ends():
            self.leave()
            self.step_ends()

    @contained
    def step_ends(self, skipped: bool = False) -> None:
        """End an optimizer step. With several optimizers, others may belong to it: then the next event closes it.

        ``skipped``: by an overflow. Raises ``SystemExit(0)`` after the last step that ``--steps`` asks for.
        """
        if self.is_active:
            self._end, self._skipped = self._mark(), skipped
            if len(self.objects.optimizers) <= 1:
                self.close_step()
                self.stop_if_asked()

    @contained
    def close_step(self) -> None:
        """Close the step whose optimizers have stepped. Those that step inside a backward close it after that."""
        if self.step is None or self._end is None or phases.BACKWARD in self.timeline.stack:
            return
        end, self._end = self._end, None
        is_profiled = self.options.profiles(self.step.number)
        is_recorded = self.step.recorded and self.step.number > (self.options.warmup or 0)
        self.rows.add(self.step, end, self._skipped, is_timed=not (is_profiled or is_recorded))
        self.steps_recorded += self.step.recorded
        self.figures.name_batch_of_peak(self.step.number, self.step.size)
        self.steps_done += 1
        took_time = [step_ended() for step_ended in self.callbacks.step]
        self.steps_skipped += self._skipped
        if self.steps_done == 1:
            self.memory.settle()
            self.callbacks.first_step()
        took_time.append(self.growth.step_ends(self.step))
        if self.steps_done == 1 or is_profiled or self.step.recorded or any(took_time):  # the meters' time is no step's
            end = self._mark()
        self._begin_step(end, self.step.figures.failures)
        if time.monotonic() - self._saved_at > SAVE_EVERY_S or self.steps_done == 1:
            self.save()

    def stop_if_asked(self) -> None:
        is_last = self.last_step and self.steps_done >= self.last_step and not self.ending.stopped
        if is_last and not self.callbacks.goes_on():
            self.ending.stopped = True
            if self.growth.bytes_per_step:
                self.growth.look()
            if not self.is_simulated:
                stop.wait_for_all_ranks()
            raise SystemExit(0)

    def _begin_training(self) -> None:
        """Begin the first step, unless training goes on."""
        self.ending.goes_on()
        if self.step is None:
            self._end = None  # an optimizer that has stepped before was no step of the training
            self._begin_step(self._mark(), self.figures.failures)
            self.save()

    def _begin_step(self, begin: Mark, failures: tuple[int, int] | None) -> None:
        self.step = Step(self.steps_done + 1, begin, PhasePeaks(failures), recorded=self.callbacks.is_recorded())

    # --- ends

    @contained
    def fails(self, error: BaseException) -> None:
        """Note an exception that leaves a phase. The script may go on."""
        if self.is_active and isinstance(error, Exception):
            self.ending.fails(error, self.at)

    @contained
    def runs_out_of_memory(self, device: int, requested: int, limit: int, free: int) -> None:
        """Note what torch's allocator could not provide. The script may go on. Threads that use different GPUs may run
        out of memory at once."""
        with self._out_of_memory:
            # A variable with this frame would be a circle, which keeps the script's tensors.
            where = user_line(sys._current_frames().get(self.thread or threading.get_ident()))
            self.ending.runs_out_of_memory(requested, self.at, where)
            if os.getpid() == self.pid:
                self.callbacks.out_of_memory(FailedRequest(device, requested, limit, free), where)

    @contained
    def exits(self, code: Any) -> None:
        """Note ``sys.exit(code)`` or ``SystemExit(code)``."""
        if self.is_active:
            self.ending.exits(code)

    def outcome(self, error: BaseException | None) -> dict[str, Any]:
        """Return ``status``, ``reason``, ``oom`` and what ``attached`` says of the end. ``error``: what ended it."""
        return self.callbacks.outcome(self.ending.outcome(error, self.steps_done, self.at["step"]))

    def is_worth_a_file(self, error: BaseException | None) -> bool:
        """Whether this process trained, or failed on its way there. ``error``: what ends the process."""
        failed = error is not None or self.ending.failure is not None
        has_begun = self.is_simulated or phases.LOAD in self.figures.phases or self.memory.device is not None
        if self.is_rank or (failed and has_begun):
            return True
        return (failed or bool(self.ending.exit_code)) and _is_started_as_rank()

    @contained
    def finish(self, error: BaseException | None) -> None:
        """End what runs: measuring ends now. Waits a little for the device to reach the end of the last step."""
        self.ending.evaluates = self.evaluates
        self._end_evaluation(by=phases.SAVE)
        self.close_step()
        ended_well = self.outcome(error)["status"] == "ok"
        self.timeline.cut(None if ended_well and self.steps_done else self.timeline.current)
        if ended_well:
            self.figures.forget_step(self.steps_done + 1)
        elif self.step is not None:
            self.figures.name_batch_of_peak(self.step.number, self.step.size or self.batches.latest)
        self.rows.finish()

    @contained
    def save(self) -> None:
        """Write the rank's file as it is now."""
        self._saved_at = time.monotonic()
        self.callbacks.save()

    # --- figures

    @property
    def at(self) -> dict[str, Any]:
        """Where the process is now."""
        step = self.step.number if self.step else None
        return {"phase": self.timeline.current, "step": step, "where": self.timeline.where}

    def _mark(self) -> Mark:
        return mark(self.memory.device is not None and not self.is_simulated)

    def _ended(self, piece: phases.TimedPiece) -> None:
        """Fold a piece into the figures, and into the running step."""
        in_step = None if self.timeline.beside_steps else self.step
        key, number = self.figures.key(piece.phase, self.steps_done), None if in_step is None else in_step.number
        for piece_ended in self.callbacks.piece:
            piece_ended(key, number, piece)
        self.figures.fold(key, number, piece)
        if in_step is not None:
            in_step.figures.fold(piece.phase, number, piece)


def _is_started_as_rank() -> bool:
    """Whether a launcher gave this process its rank: a helper program of a rank inherits the variable."""
    if "RANK" not in os.environ:
        return False
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as variables:
            return not any(each.startswith(b"RANK=") for each in variables.read().split(b"\0"))
    except OSError:  # the launcher belongs to another user, or has ended
        return True
