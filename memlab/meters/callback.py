"""A callback of transformers that measures ``trainer.train()``."""

import atexit
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from transformers import TrainerCallback


class MeasuringCallback(TrainerCallback):
    """Enters a context when training begins and leaves it when training has ended.

    Trainer has no callback for exceptions: after one, the measurement ends with the process, or with the next training.
    ``measure``: makes the context of one training from the Trainer's ``output_dir``.
    """

    def __init__(self, measure: Callable[[str], AbstractContextManager]):
        self.measure = measure
        self.context = ExitStack()

    def on_train_begin(self, args, state, control, **kwargs):
        self._leave_after_exception()
        self.context.enter_context(self.measure(args.output_dir))
        atexit.register(self._leave_after_exception)

    def on_train_end(self, args, state, control, **kwargs):
        self._leave(None)

    def _leave_after_exception(self) -> None:
        self._leave(getattr(sys, "last_value", None))

    def _leave(self, error: BaseException | None) -> None:
        atexit.unregister(self._leave_after_exception)
        self.context.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
