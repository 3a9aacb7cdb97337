"""Data-dependent indices: next tokens, experts and selected elements, where logits, scores and masks are unknown.

In an ordinary run a generation is as long as it may be, experts are drawn at random, so that they share the tokens
about evenly, and masks select all elements. The other extreme is traced in a run of its own (``other_end``).
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from typing import Any

import torch

from memlab.simulator.trace.trace_format import GENERATION, ROUTING, SELECTION

_aten = torch.ops.aten
_HOST = torch.device("cpu")
_OF_TOKENS = frozenset({_aten.argmax, _aten.multinomial})
_OF_BEAMS = frozenset({_aten.topk, _aten.multinomial})
"""Operators that choose the next token of a sequence; those that choose the continuations of beam search."""


class Choices:
    """Chooses for the program. ``other_end``: ``GENERATION`` ends each generation at once, ``ROUTING`` sends every row
    to the same indices, ``SELECTION`` selects no element by unknown values; ``None``: as described above."""

    def __init__(self, other_end: str | None = None):
        self.other_end = other_end
        self._random_state: torch.Tensor | None = None
        self._ending: frozenset[int] = frozenset()
        self._vocabulary = self._tokens_before_the_end = self._beams = 0

    @property
    def selects_all(self) -> bool:
        """Whether unknown values select all elements; else they select none."""
        return self.other_end != SELECTION

    # --- tokens

    def begin_generation(self, vocabulary: int, ending: Collection[int], at_least: int) -> None:
        """Choose tokens of a generation from now on. ``ending``: tokens that end it; ``at_least``: tokens before it."""
        self._vocabulary, self._ending, self._tokens_before_the_end = vocabulary, frozenset(ending), at_least

    def end_generation(self) -> None:
        self._vocabulary = 0

    @contextmanager
    def among_beams(self, number: int) -> Iterator[None]:
        """Choose continuations of ``number`` beams while the block runs: each index is a beam and its next token."""
        self._beams = number
        try:
            yield
        finally:
            self._beams = 0

    def next_tokens(self, func: Any, size: int, shape: Sequence[int]) -> torch.Tensor | None:
        """The indices that ``func`` is to choose among ``size``; ``None`` if it chooses no tokens of a generation.

        ``shape``: of the indices.
        """
        if not self._ending or not self._vocabulary or size != self._vocabulary * max(self._beams, 1):
            return None
        if func.overloadpacket not in (_OF_BEAMS if self._beams else _OF_TOKENS):
            return None
        self._tokens_before_the_end -= 1
        ends = self.other_end == GENERATION and self._tokens_before_the_end < 0
        tokens = iter(sorted(self._ending)) if ends else (each for each in count() if each not in self._ending)
        if not self._beams:
            return _aten.full.default(list(shape), next(tokens), dtype=torch.int64, device=_HOST)
        different = list(islice(tokens, -(-shape[-1] // self._beams)))  # for the continuations of one beam
        places = (divmod(place, self._beams) for place in range(shape[-1]))
        row = [beam * self._vocabulary + different[turn % len(different)] for turn, beam in places]
        return torch.tensor(row, device=_HOST).expand(list(shape)).contiguous()

    # --- all others

    def scores(self, shape: list[int]) -> torch.Tensor:
        """Floats to choose by: random, or descending in each row."""
        if self.other_end == ROUTING and shape:
            return _aten.arange.start_step(shape[-1], 0, -1, dtype=torch.float32, device=_HOST).expand(shape)
        with self.own_random_state():
            return _aten.rand.default(shape, device=_HOST)

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
