"""What the running program reads from tensors: their values where they are known, and else those of a healthy run."""

from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memlab.simulator.rank.assumptions import Assumptions
from memlab.simulator.rank.values import Values
from memlab.simulator.simulation import note_choice
from memlab.simulator.trace.trace_format import GENERATION, ROUTING, SELECTION

CHOSEN = {
    GENERATION: "from tokens that memlab chose",
    ROUTING: "from indices that memlab chose",
    SELECTION: "to choose all",
}
"""Choice -> how a value was taken that follows from it."""


class ValueReads:
    """Answers the operators that read values. Each read of an unknown value is noted in ``assumptions``, and in
    ``trace.choices`` the choice behind it, if the read decides a branch."""

    def __init__(self, values: Values, assumptions: Assumptions, choices: list[str]):
        self._values, self._assumptions, self._choices = values, assumptions, choices

    def item(self, tensor: torch.Tensor) -> bool | int | float:
        """Return the result of ``tensor.item()``."""
        known = self._values.of(tensor)
        if known is None:
            return self._assume(tensor)
        self._note_if_assumed(tensor, decides_sizes=False)
        return known.item()

    def compared(
        self, compare: Callable[..., bool], assumed: bool, first: torch.Tensor, second: torch.Tensor, *rest, **options
    ) -> bool:
        """Return what ``compare`` says of two tensors; ``assumed`` where the values of one are unknown."""
        known = [self._values.of(tensor) for tensor in (first, second)]
        if any(value is None for value in known):
            self._assumptions.note(f"as {assumed}")
            return assumed
        return compare(*known, *rest, **options)

    def real(self, tensor: FakeTensor) -> torch.Tensor:
        """Return a host tensor with the values of ``tensor``, or with those of a healthy run."""
        known = self._values.of(tensor)
        if known is not None:
            self._note_if_assumed(tensor, decides_sizes=torch.is_grad_enabled())
            return known
        value = self._assume(tensor)
        healthy = torch.ops.aten.full.default([], value, dtype=tensor.dtype, device=torch.device("cpu"))
        return healthy.expand(tensor.shape)

    def note_choice(self, choice: str) -> None:
        """Note that what the program does now follows from a choice of memlab's."""
        self._assumptions.note(CHOSEN[choice], may_be_a_size=True)
        if choice not in self._choices:
            self._choices.append(choice)
            note_choice(choice)

    def _note_if_assumed(self, tensor: torch.Tensor, decides_sizes: bool) -> None:
        """Note a read of values that follow from a choice. ``decides_sizes``: what is read may become sizes."""
        choice = self._values.choice_behind(tensor)
        if choice == GENERATION or (choice and decides_sizes):
            self.note_choice(choice)
        elif choice:
            self._assumptions.note(CHOSEN[choice])

    def _assume(self, tensor: torch.Tensor) -> bool | int | float:
        """Return an element of an unknown tensor as in a healthy run, and note where the program asked for it.

        In a healthy run nothing overflows and every norm is finite.
        """
        value = self._values.healthy(tensor)
        self._assumptions.note(f"as {value}", may_be_a_size=type(value) is int)
        return value
