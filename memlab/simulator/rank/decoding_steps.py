"""Decoding steps of transformers' generations: some are traced, those that are like them are computed.

A decoding step is a forward of the model for one more token, as ``GenerationMixin._sample`` calls it. All around it
runs as it is: processors of logits, the choice of a token, stopping criteria, scores. A computed step writes the events
and the work that a traced one would write, and leaves the same tensors: those of the cache, and the model's outputs.
Where steps are not alike, or their cache is of another kind, all are traced.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memlab.meters.own_errors import contained
from memlab.simulator.rank.alike_parts import Described, traced_part, write_again
from memlab.simulator.rank.memory_events import block_of
from memlab.simulator.rank.recorder import Recorder
from memlab.simulator.trace.alike_steps import MOST_STEPS, AlikeStep, Law

_CACHE = "past_key_values"


class DecodingSteps:
    """Computes decoding steps in all generations of a process. The later ones use what was learned in earlier ones."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._laws: list[Law] = []

    def within(self, sample: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``GenerationMixin._sample``, which reads ``model.__call__`` once, and calls it for each step after the
        one of the prompt."""

        @functools.wraps(sample)
        def sample_with_computed_steps(model: Any, *args: Any, **options: Any) -> Any:
            own = vars(model)
            if "__call__" in own:
                return sample(model, *args, **options)
            own["__call__"] = _Generation(model.__call__, self._recorder, self._laws).step
            try:
                return sample(model, *args, **options)
            finally:
                own.pop("__call__", None)

        return sample_with_computed_steps


class _Generation:
    """Steps of one generation. ``forward``: the model's. ``laws``: of all generations."""

    def __init__(self, forward: Callable[..., Any], recorder: Recorder, laws: list[Law]):
        self._forward, self._recorder, self._laws = forward, recorder, laws
        self._law: Law | None = None
        self._steps: list[AlikeStep] = []  # the last traced ones, consecutive, without a law

    def step(self, **inputs: Any) -> Any:
        """Trace or compute a step, and return the outputs of the model."""
        length = _length(inputs)
        if step := self._computed(length):
            return self._write(step, inputs)
        found = [] if length is None else list(map(block_of, _tensors(inputs)))
        with traced_part(self._recorder) as described:
            outputs = self._forward(**inputs)
            self._follow(None if length is None else self._described(described, length, inputs, outputs, found))
        return outputs

    @contained
    def _described(
        self, described: Described, length: int, inputs: dict[str, Any], outputs: Any, found: list
    ) -> AlikeStep | None:
        """Describe a traced step; ``None`` if it leaves or frees anything else than its outputs and its cache."""
        cache = inputs.get(_CACHE)
        names = [(name, value is cache) for name, value in outputs.items()]
        left = [*_tensors(inputs), *(value for value in outputs.values() if value is not cache)]
        return described(length, found, left, (type(outputs), names))

    def _follow(self, traced: AlikeStep | None) -> None:
        """Keep to the law, or find one. A traced step that contradicts a law ends it."""
        law, self._law = self._law, None
        if traced is None or (self._steps and traced.size != self._steps[-1].size + 1):
            self._steps.clear()
        if traced is None:
            return
        if law is not None and not law.holds(traced):
            law.end(traced.size)
        self._law = next((law for law in self._laws if law.holds(traced)), None)
        if self._law is None:
            self._steps = [*self._steps[1 - MOST_STEPS :], traced]
            self._law = Law.of(self._steps)
            self._laws += [self._law] if self._law else []
        if self._law is not None:
            self._steps.clear()

    @contained
    def _computed(self, length: int | None) -> AlikeStep | None:
        return None if self._law is None or length is None else self._law.at(length)

    def _write(self, step: AlikeStep, inputs: dict[str, Any]) -> Any:
        """Write what a step does into the trace, leave its tensors, and return its outputs."""
        (outputs, names), *_ = step.others
        found = [tensor.untyped_storage() for tensor in _tensors(inputs)]
        tensors = iter(write_again(self._recorder, step, found)[0])
        for layer in _layers(inputs):
            layer.keys, layer.values = next(tensors), next(tensors)
        return outputs(**{name: inputs[_CACHE] if is_cache else next(tensors) for name, is_cache in names})


# --- what is read and changed of transformers: the inputs of a step, and the layers of a cache


def _layers(inputs: dict[str, Any]) -> Sequence[Any]:
    """Return the layers of the cache, each of which holds ``keys`` and ``values`` of all tokens; none without cache."""
    return getattr(inputs.get(_CACHE), "layers", ())


def _tensors(inputs: dict[str, Any]) -> list[torch.Tensor]:
    return [tensor for layer in _layers(inputs) for tensor in (layer.keys, layer.values)]


@contained
def _length(inputs: dict[str, Any]) -> int | None:
    """Return the tokens of a sequence after a step; ``None`` if its cache has layers of which little is known here."""
    ids, cache, layers = inputs.get("input_ids"), inputs.get(_CACHE), _layers(inputs)
    if ids is None or cache is None:
        return None if ids is None else ids.shape[-1]
    grows = type(cache).__name__ == "DynamicCache" and all(type(layer).__name__ == "DynamicLayer" for layer in layers)
    is_full = grows and all(isinstance(tensor, torch.Tensor) for tensor in _tensors(inputs))
    if not layers or not is_full or cache.offloading or ids.shape[-1] != 1:
        return None
    return layers[0].keys.shape[-2] + 1
