"""memlab's training on transformers' Trainer: its arguments, its batches and its events, the same on simulated GPUs."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from memlab.core.plan import Plan
from memlab.runs.folder import RunFolder
from memlab.training.data import Batches


class PointsTrainer(Trainer):
    """transformers.Trainer with batches that are already this rank's, and with ``on_loss`` called for each loss."""

    def __init__(self, model, arguments: TrainingArguments, batches: Batches, on_loss: Callable[[torch.Tensor], None]):
        super().__init__(model=model, args=arguments, train_dataset=batches)
        self.on_loss = on_loss

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, batch_size=None)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self.on_loss(loss)
        return loss


class Steppable(Protocol):
    """Receiver of the calls of :class:`StepCallback`: a launch, or its stand-in in a shadow run."""

    def engine_is_ready(self, engine: torch.nn.Module) -> None: ...

    def step_begin(self) -> None: ...

    def step_end(self) -> None: ...


class StepCallback(TrainerCallback):
    """Callback that tells when training and each step begin, and when a step ends."""

    def __init__(self, receiver: Steppable, trainer: Trainer):
        self.receiver, self.trainer = receiver, trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.receiver.engine_is_ready(self.trainer.model_wrapped)

    def on_step_begin(self, args, state, control, **kwargs):
        self.receiver.step_begin()

    def on_step_end(self, args, state, control, **kwargs):
        self.receiver.step_end()


def trainer_arguments(plan: Plan, folder: RunFolder, steps: int) -> TrainingArguments:
    """Return the plan's arguments with the total ``steps`` of all points. Trainer writes nothing into
    ``output_dir``."""
    own = {"deepspeed": plan.deepspeed, "output_dir": str(folder), "max_steps": steps}
    return TrainingArguments(**{**plan.training_args, **own})
