"""Colours of the kinds of memory, the same in every picture, and the order in which a picture stacks the kinds.

The kinds that a run is made of (weights, master weights, optimizer states, gradients, gathered weights, activations)
have the colours of Okabe and Ito (2008), lightened on a dark page. The others are chosen so that every two kinds can
also be told apart by readers who see no red or no green (tests/unit/report/test_kind_colors.py computes what they see).
"""

from collections.abc import Iterable

from memlab.analyse.explain.snapshot_trace import BEFORE
from memlab.simulator.trace import memory_kinds

KIND_COLORS = {
    memory_kinds.WEIGHTS: ("#0072B2", "#2F86C5"),
    BEFORE: ("#BDBDBD", "#4C4F57"),
    memory_kinds.MASTER: ("#CC79A7", "#DE9CC0"),
    memory_kinds.OPTIMIZER: ("#009E73", "#2CC295"),
    memory_kinds.GRADIENTS: ("#D55E00", "#F0702A"),
    memory_kinds.CASTS: ("#9C8CF5", "#3D2FD0"),
    memory_kinds.GATHERED: ("#56B4E9", "#A9DDF8"),
    memory_kinds.BUCKETS: ("#4B2A6E", "#6440A8"),
    memory_kinds.ACTIVATIONS: ("#F0E442", "#F0E442"),
    memory_kinds.LOGITS: ("#99265F", "#B03A76"),
    memory_kinds.ACTIVATION_GRADIENTS: ("#FBD3A6", "#FBDDBE"),
    memory_kinds.WRITTEN_OUT: ("#3377FF", "#5B8CFF"),
    memory_kinds.STEP: ("#5C3A00", "#8A5A14"),
    memory_kinds.KERNEL_SCRATCH: ("#262626", "#D8D8D8"),
    memory_kinds.SMALL: ("#CFEAF9", "#57788A"),
}
"""Kind, from the bottom of a stack to its top -> its colour on a white and on a dark page. What stays over the steps
lies below what comes and goes."""

_UNKNOWN = ("#8A8A8A", "#9A9A9A")


def kind_colors(kinds: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return kind -> colour on a white and on a dark page, in the order of a stack; unknown kinds lie on top, grey."""
    found = set(kinds)
    known = {kind: colors for kind, colors in KIND_COLORS.items() if kind in found}
    return known | dict.fromkeys(sorted(found - known.keys()), _UNKNOWN)
