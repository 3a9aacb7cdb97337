"""A callback of transformers that measures ``trainer.train()``."""

from contextlib import AbstractContextManager

from transformers import TrainerCallback


class MeasuringCallback(TrainerCallback):
    """Enters a context when training begins and leaves it when training has ended."""

    def __init__(self, context: AbstractContextManager):
        self.context = context

    def on_train_begin(self, args, state, control, **kwargs):
        self.context.__enter__()

    def on_train_end(self, args, state, control, **kwargs):
        self.context.__exit__(None, None, None)
