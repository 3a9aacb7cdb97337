"""Colours of the kinds of memory, the same in every picture, and the order in which a picture stacks the kinds."""

from collections.abc import Iterable

from memlab.analyse.explain.snapshot_trace import BEFORE
from memlab.predict.trace.memory_kinds import (
    ACTIVATION_GRADIENTS,
    ACTIVATIONS,
    BUCKETS,
    GATHERED,
    GRADIENTS,
    KERNEL_SCRATCH,
    LOGITS,
    MASTER,
    OPTIMIZER,
    SMALL,
    STEP,
    WEIGHTS,
    WRITTEN_OUT,
)
from memlab.report.palette import OKABE_ITO

BLUE, VERMILION, GREEN, PINK, YELLOW, SKY, GREY = range(len(OKABE_ITO))

_HUES = {
    WEIGHTS: (BLUE, False),
    BEFORE: (GREY, True),
    MASTER: (PINK, False),
    OPTIMIZER: (GREEN, False),
    GRADIENTS: (VERMILION, False),
    GATHERED: (SKY, False),
    BUCKETS: (GREEN, True),
    ACTIVATIONS: (YELLOW, False),
    LOGITS: (PINK, True),
    ACTIVATION_GRADIENTS: (VERMILION, True),
    WRITTEN_OUT: (BLUE, True),
    STEP: (YELLOW, True),
    KERNEL_SCRATCH: (GREY, False),
    SMALL: (SKY, True),
}
"""Kind, from the bottom of a stack to its top -> its colour, and whether the colour is pale. What stays over the steps
lies below what comes and goes."""


def kind_colors(kinds: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return kind -> colour on a white and on a dark page, in the order of a stack; unknown kinds lie on top, grey."""
    known = list(_HUES)
    ordered = sorted(set(kinds), key=lambda kind: (known.index(kind) if kind in known else len(known), kind))
    return {kind: _color(*_HUES.get(kind, (GREY, True))) for kind in ordered}


def _color(hue: int, is_pale: bool) -> tuple[str, str]:
    light, dark = OKABE_ITO[hue]
    return (_mixed(light, 0xFF), _mixed(dark, 0x20)) if is_pale else (light, dark)


def _mixed(color: str, grey: int) -> str:
    """Return the colour, half mixed with a grey."""
    parts = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{(part + grey) // 2:02X}" for part in parts)
