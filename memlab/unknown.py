"""Figures that stand beside memory: where one cannot be told, the run goes on without it and says why."""

from collections.abc import Iterator
from contextlib import contextmanager

MODEL_FLOPS = "model_flops_per_step"
WORK = "work"  # what a predicted step asks of the machine, and so its time


@contextmanager
def left_out(figure: str, unknown: dict[str, str]) -> Iterator[None]:
    """Note in ``unknown`` why a figure cannot be told: the error that ended its computation."""
    try:
        yield
    except Exception as error:  # whatever it is: nobody asked for this figure alone
        unknown[figure] = f"{type(error).__name__}: {error}"
