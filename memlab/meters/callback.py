"""A callback of transformers that measures ``trainer.train()``."""

import atexit
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from transformers import TrainerCallback


class MeasuringCallback(TrainerCallback):
    """Enters a context when training begins and leaves it when training has ended.

    Trainer has no callback for exceptions: after one, the measurement ends with the process, or with the next training.
    ``measure``: makes the context of one training from the Trainer's ``output_dir``.
    """

    def __init__(self, measure: Callable[[str], AbstractContextManager]):
        self.measure = measure
        self.context: AbstractContextManager | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self._leave_after_exception()
        self.context = self.measure(args.output_dir)
        self.context.__enter__()
        atexit.register(self._leave_after_exception)

    def on_train_end(self, args, state, control, **kwargs):
        self._leave(None)

    def _leave_after_exception(self) -> None:
        self._leave(getattr(sys, "last_value", None))

    def _leave(self, error: BaseException | None) -> None:
        context, self.context = self.context, None
        atexit.unregister(self._leave_after_exception)
        if context is not None:
            context.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
