"""Colours that colour-blind readers can distinguish, and the style of each configuration in a whole report."""

from collections.abc import Iterable
from dataclasses import dataclass

OKABE_ITO = (
    ("#0072B2", "#4BA3DB"),
    ("#D55E00", "#F0833A"),
    ("#009E73", "#2CC295"),
    ("#CC79A7", "#DE9CC0"),
    ("#B07D00", "#E6AF2E"),
    ("#56B4E9", "#8FD0F5"),
    ("#6B6B6B", "#B4B4B4"),
)
"""Colours of Okabe and Ito (2008): on white, and lightened for a dark page.

Yellow is darkened and black is replaced by grey, for contrast on both backgrounds.
"""

DASHES = ("solid", "dashed", "dotted", "dashdot")
MARKERS = ("o", "s", "^", "D", "v", "P", "p")


@dataclass(frozen=True)
class Style:
    """Style of a configuration: its colour on white and on dark, its line, its marker."""

    color: str
    dark: str
    dash: str
    marker: str


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Assign a style to each label by its position: the same list of labels always gets the same styles.

    From the eighth label on, the colours recur with another line and another marker.
    """
    found = {}
    for index, label in enumerate(labels):
        turn = index // len(OKABE_ITO) % len(DASHES)
        color, dark = OKABE_ITO[index % len(OKABE_ITO)]
        found[label] = Style(color, dark, DASHES[turn], MARKERS[(index + turn) % len(MARKERS)])
    return found
