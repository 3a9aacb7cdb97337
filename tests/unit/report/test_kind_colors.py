"""Colours of the kinds of memory: every two can be told apart, also by readers who see no red or no green."""

from itertools import combinations

import numpy as np
import pytest

from memlab.report.kind_colors import KIND_COLORS, kind_colors

SEEN = {
    "all colours": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
"""Linear RGB -> linear RGB as seen: Machado, Oliveira and Fernandes (2009), severity 1.0."""

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)

APART = 12
"""Least distance of two colours in CIELAB (1976); 2.3 is just noticeable side by side."""


def lab(color: str, seen: np.ndarray) -> np.ndarray:
    rgb = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(np.maximum(TO_XYZ @ np.clip(seen @ linear, 0, 1) / WHITE, 1e-9))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("page", [0, 1], ids=["white", "dark"])
def test_every_two_kinds_can_be_told_apart(seen, page):
    places = {kind: lab(colors[page], seen) for kind, colors in KIND_COLORS.items()}
    near = [
        (first, second) for first, second in combinations(places, 2)
        if np.linalg.norm(places[first] - places[second]) < APART
    ]  # fmt: skip
    assert not near


def test_kinds_are_in_the_order_of_a_stack_and_unknown_ones_on_top():
    assert list(kind_colors(["small tensors", "of another memlab", "weights"])) == [
        *("weights", "small tensors", "of another memlab")
    ]
