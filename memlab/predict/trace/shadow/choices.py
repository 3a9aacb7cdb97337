"""Indices that a program chooses by floats which nobody knows: next tokens by their logits, experts by their scores.

In an ordinary run a generation is as long as it may be, and experts are drawn at random, so that they share the tokens
about evenly. The other end of what can happen is traced in a run of its own (``OTHER_ENDS``).
"""

from collections.abc import Collection
from contextlib import contextmanager
from typing import Any

import torch

from memlab.predict.trace.trace_format import GENERATION, ROUTING

_aten = torch.ops.aten
_OF_TOKENS = frozenset({_aten.argmax, _aten.multinomial})


class Choices:
    """Chooses for the program. ``other_end``: ``GENERATION`` ends each generation at once, ``ROUTING`` sends every row
    to the same indices; ``None``: as described above."""

    def __init__(self, other_end: str | None = None):
        self.other_end = other_end
        self._random_state: torch.Tensor | None = None
        self._ending: frozenset[int] = frozenset()
        self._vocabulary = self._tokens_before_the_end = 0

    # --- tokens

    def begin_generation(self, vocabulary: int, ending: Collection[int], at_least: int) -> None:
        """Choose tokens of a generation from now on. ``ending``: tokens that end it; ``at_least``: tokens before it."""
        self._vocabulary, self._ending, self._tokens_before_the_end = vocabulary, frozenset(ending), at_least

    def end_generation(self) -> None:
        self._vocabulary = 0

    def next_token(self, func: Any, size: int) -> int | None:
        """The token that ``func`` is to choose among ``size``; ``None`` if it chooses something else."""
        if not self._ending or size != self._vocabulary or func.overloadpacket not in _OF_TOKENS:
            return None
        self._tokens_before_the_end -= 1
        if self.other_end == GENERATION and self._tokens_before_the_end < 0:
            return min(self._ending)
        return next(token for token in range(size) if token not in self._ending)

    # --- all others

    def scores(self, shape: list[int]) -> torch.Tensor:
        """Floats to choose by: random, or descending in each row."""
        host = torch.device("cpu")
        if self.other_end == ROUTING and shape:
            return _aten.arange.start_step(shape[-1], 0, -1, dtype=torch.float32, device=host).expand(shape)
        with self.own_random_state():
            return _aten.rand.default(shape, device=host)

    @contextmanager
    def own_random_state(self):
        """A random state beside that of the host, which a GPU does not change either."""
        before = torch.get_rng_state()
        if self._random_state is not None:
            torch.set_rng_state(self._random_state)
        try:
            yield
        finally:
            self._random_state = torch.get_rng_state()
            torch.set_rng_state(before)
