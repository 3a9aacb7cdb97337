"""Layers of a stack of memory: its kinds in the order and the colours of every picture, and the allocator's slack."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from memlab.report.kind_colors import kind_colors

SMALLEST = 0.01
"""Share of the highest stack. Kinds that never reach it are one layer."""

SMALLER = "smaller kinds"
SLACK = "slack of the allocator"
OUTSIDE = "outside the allocator"

RESERVED = "#7A2F8F"
"""Colour of the line of reserved memory, as on the page."""

_SMALLER_COLOR, _SLACK_COLOR, _OUTSIDE_COLOR = "#8A8A8A", "#FFFFFF", "#D0D0D0"


class Layer(NamedTuple):
    """Layer of a stack, with its size in bytes at each position."""

    name: str
    color: str
    hatch: str
    sizes: list[int]


def layers(
    kinds: Mapping[str, Sequence[int]], reserved: Sequence[int], outside: Sequence[int] | None = None
) -> list[Layer]:
    """Return the layers from bottom to top. ``kinds``: kind -> requested bytes at each position; slack is what is
    reserved beyond them. ``outside``: a last layer, if it is shown."""
    least = SMALLEST * max(reserved, default=0)
    large = [kind for kind, sizes in kinds.items() if max(sizes, default=0) >= least]
    found = [Layer(kind, color, "", list(kinds[kind])) for kind, (color, _) in kind_colors(large).items()]
    small = [sizes for kind, sizes in kinds.items() if kind not in large]
    if any(map(any, small)):
        found.append(Layer(SMALLER, _SMALLER_COLOR, "", [sum(sizes) for sizes in zip(*small, strict=True)]))
    requested = [sum(sizes) for sizes in zip(*kinds.values(), strict=True)] if kinds else [0] * len(reserved)
    slack = [whole - part for whole, part in zip(reserved, requested, strict=True)]
    found.append(Layer(SLACK, _SLACK_COLOR, "////", slack))
    if outside is not None:
        found.append(Layer(OUTSIDE, _OUTSIDE_COLOR, "....", list(outside)))
    return found
