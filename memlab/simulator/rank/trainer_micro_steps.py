"""Micro-steps of transformers' Trainer: some are traced, those that are like them are computed.

A micro-step is a call of ``Trainer.training_step``, also by TRL's trainers. memlab computes a micro-step if each
parameter already has a gradient, and if the sizes of the traced micro-steps follow from measures of their batches
(measured_steps.py). It traces a micro-step whose batch is much larger than those before, and all micro-steps of a model
that is wrapped for several GPUs.

A computed micro-step leaves its loss. A buffer of the model that a traced micro-step replaces keeps its old values.
Lists of metrics get nothing, because they hold numbers and no tensors.
"""

import functools
from collections import defaultdict
from collections.abc import Mapping
from itertools import accumulate
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from memlab.meters.garbage_collector import paused_garbage_collector
from memlab.meters.own_errors import contained
from memlab.meters.phases import BACKWARD
from memlab.meters.session import Session
from memlab.simulator.rank.alike_parts import Described, traced_part, write_again
from memlab.simulator.rank.memory_events import block_of
from memlab.simulator.rank.recorder import Recorder
from memlab.simulator.trace.alike_steps import AlikeStep, Outline
from memlab.simulator.trace.events import FREE, Alloc, BeginPhase, made
from memlab.simulator.trace.measured_steps import Formulas

MOST_STEPS = 8
"""Recorded micro-steps that must follow from the same formulas: the last ones."""


class TrainerMicroSteps:
    """Computes micro-steps in all trainings of a process.

    ``_kept``: blocks that the last micro-step left beside its loss -> their size, stream and site.
    """

    def __init__(self, session: Session, recorder: Recorder):
        self._session, self._recorder = session, recorder
        self._outlines: dict[Any, list[Outline]] = defaultdict(list)  # of micro-steps whose batches have equal tensors
        self._formulas: dict[Any, Formulas | None] = {}
        self._kept: dict[int, tuple[int, int, int]] = {}

    def install(self, module: ModuleType) -> None:
        """Wrap ``Trainer.training_step`` in the module that has it."""
        trainer_class = module.Trainer
        traced, prepare = trainer_class.training_step, trainer_class._prepare_inputs

        @functools.wraps(traced)
        def training_step(trainer: Any, model: torch.nn.Module, inputs: Any, *args: Any, **options: Any) -> Any:
            accelerator, is_alone = trainer.accelerator, type(trainer)._prepare_inputs is prepare
            is_plain = is_alone and accelerator.distributed_type == "NO"
            has_gradients = is_plain and all(each.grad is not None for each in model.parameters() if each.requires_grad)
            kind, size = (self._measured(inputs) if has_gradients else None) or (None, ())
            self._session.forward_begins(inputs)
            if computed := self._computed((id(model), kind), size):
                return self._write(*computed)
            begin = len(self._recorder.trace.events)
            if kind is None:
                loss = traced(trainer, model, inputs, *args, **options)
                self._follow(begin, loss)
                return loss
            with traced_part(self._recorder) as described:
                loss = traced(trainer, model, inputs, *args, **options)
                self._learn((id(model), kind), size, self._follow(begin, loss), loss, described)
            return loss

        trainer_class.training_step = training_step

    @contained
    def _measured(self, inputs: Any) -> tuple[tuple, tuple[int, ...]] | None:
        """Return what must be equal in batches that are alike, and their measures: the elements of each tensor and of
        all, dimensions, and how many values are positive in each row of a mask, up to it, and from it on. ``None``: not
        known."""
        if not isinstance(inputs, Mapping) or not all(isinstance(value, torch.Tensor) for value in inputs.values()):
            return None
        elements = [value.numel() for value in inputs.values()]
        measures = [*elements, sum(elements)]
        for tensor in inputs.values():
            measures += tensor.shape
            values = self._recorder.values.of(tensor)
            if values is not None and values.dim() == 2 and not values.is_floating_point():
                with _disable_current_modes():  # memlab's own operators are no work of the run
                    rows = values.gt(0).sum(1).tolist()
                measures += [*rows, *accumulate(rows), *accumulate(reversed(rows))]
        kind = [(name, tensor.dtype, tensor.device, tensor.dim()) for name, tensor in inputs.items()]
        return (*kind, len(measures)), tuple(measures)

    @contained
    def _follow(self, begin: int, loss: torch.Tensor) -> tuple[list[int], list[Any]] | None:
        """Note what a traced micro-step has left, and return the blocks that it found and freed, with their origins.
        ``None``: it does not leave equal blocks in their place, or has other phases than forward and backward."""
        trace, before = self._recorder.trace, self._kept
        events = trace.events[begin:]
        own, freed = set(made(events)), [event.key for event in events if isinstance(event, FREE)]
        stays, found = own - {*freed, block_of(loss)}, [key for key in freed if key not in own]
        allocs = [event for event in events if isinstance(event, Alloc) and event.key in stays]
        self._kept = {event.key: (event.nbytes, event.stream, event.site) for event in allocs}
        phases = [trace.phases[event.phase] for event in events if isinstance(event, BeginPhase)]
        origins = list(self._kept.values())
        is_alike = len(phases) == 2 and phases[0].endswith(BACKWARD) and list(map(before.get, found)) == origins
        return (found, origins) if is_alike else None

    @contained
    @paused_garbage_collector()
    def _learn(self, kind: Any, size: tuple[int, ...], followed: Any, loss: torch.Tensor, described: Described) -> None:
        """Find the formulas of micro-steps from the last traced ones."""
        found, origins = followed or ([], [])
        step = described(size, found, [loss], origins, list(self._kept)) if followed else None
        earlier = self._outlines[kind][1 - MOST_STEPS :]
        self._outlines[kind] = [*earlier, step.outline] if step else []
        tensors = len(kind[1]) - 1  # it names each tensor, then the number of measures
        self._formulas[kind] = Formulas.of(earlier, step, tensors) if step else None

    @contained
    def _computed(self, kind: Any, size: tuple[int, ...]) -> tuple[AlikeStep, list[Any]] | None:
        """Return a micro-step and the storages whose blocks it frees; ``None`` where it is to be traced."""
        formulas = self._formulas.get(kind)
        step = formulas and formulas.at(size)
        if not step:
            return None
        origins = step.others[0]
        found = [key for key, origin in self._kept.items() if origin in origins]
        storages = list(map(self._recorder.memory.storage_in, found))
        return None if [self._kept[key] for key in found] != origins or None in storages else (step, storages)

    @paused_garbage_collector()
    def _write(self, step: AlikeStep, storages: list[Any]) -> torch.Tensor:
        """Write what a micro-step does into the trace, and return its loss."""
        backward = functools.partial(self._session.enter, BACKWARD), self._session.leave
        (loss,), keys = write_again(self._recorder, step, storages, cuts=backward)
        origins, kept, _ = step.others
        self._kept = {keys[block]: origin for block, origin in zip(kept, origins, strict=True)}
        for storage, key in zip(storages, self._kept, strict=True):
            self._recorder.memory.lies_in(storage, key, storage._memlab_site, storage._memlab_gpu)
        return loss
