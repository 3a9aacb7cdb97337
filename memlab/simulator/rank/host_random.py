"""Random numbers that large host tensors take: they are not made, but the host's generator goes on as if they were.

A model that is initialized on the host takes a number for each weight. What follows, the order of the samples for
example, depends on how many were taken.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_aten = torch.ops.aten

MOST_DRAWS = 1 << 31
"""Numbers after which a process no longer follows: about 5 s."""

_NORMAL = frozenset(
    {
        *(_aten.normal_.default, _aten.normal.float_float),
        *(_aten.randn.default, _aten.randn.generator, _aten.randn_like.default),
    }
)
TAKING = _NORMAL | {_aten.uniform_.default, _aten.rand.default, _aten.rand.generator, _aten.rand_like.default}
"""Operators that take a known number of random numbers."""

BLOCK = 16
"""Normal numbers that the host makes at once: a last block that is not full is made again (normal_fill in ATen's
DistributionTemplates.h)."""

_PLACE = {"left": slice(8, 12), "next": slice(16, 24), "state": slice(24, 24 + 624 * 8)}
"""Bytes of a generator's state (THGeneratorState in ATen's CPUGeneratorImpl.cpp)."""

_taken = 0


def take(func, out: Any, generator: torch.Generator | None) -> None:
    """Let the generator go on as if ``func`` had made the numbers of ``out``, a fake tensor."""
    global _taken
    if out.device.type != "cpu" or not isinstance(out, FakeTensor) or not out.numel():
        return
    draws = out.numel() + (BLOCK if func in _NORMAL and out.numel() % BLOCK else 0)
    draws *= 2 if out.dtype is torch.float64 else 1
    _taken += draws
    if _taken <= MOST_DRAWS:
        _skip(torch.default_generator if generator is None else generator, draws)


def _skip(generator: torch.Generator, draws: int) -> None:
    """Skip 32-bit numbers of torch's Mersenne Twister, with numpy's, whose state is the same. Nothing without numpy."""
    try:
        import numpy as np
    except ImportError:
        return
    state = generator.get_state()
    left, following, words = (state.numpy()[place] for place in _PLACE.values())
    twister = np.random.MT19937()
    position = 624 if left.view(np.int32)[0] == 1 else int(following.view(np.uint64)[0])
    key = words.view(np.uint64).astype(np.uint32)
    twister.state = {**twister.state, "state": {"key": key, "pos": position}}
    twister.random_raw(draws, output=False)
    key, position = twister.state["state"]["key"], twister.state["state"]["pos"]
    words.view(np.uint64)[:], following.view(np.uint64)[0], left.view(np.int32)[0] = key, position, 625 - position
    generator.set_state(state)
