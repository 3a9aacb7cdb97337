"""A callback of transformers that measures ``trainer.train()``."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from transformers import TrainerCallback


class MeasuringCallback(TrainerCallback):
    """Enters a context when training begins and leaves it when training has ended.

    ``measure``: makes the context of one training from the Trainer's ``output_dir``.
    """

    def __init__(self, measure: Callable[[str], AbstractContextManager]):
        self.measure = measure

    def on_train_begin(self, args, state, control, **kwargs):
        self.context = self.measure(args.output_dir)
        self.context.__enter__()

    def on_train_end(self, args, state, control, **kwargs):
        self.context.__exit__(None, None, None)
