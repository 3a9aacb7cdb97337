"""Figures as people read them."""

import pytest

from memlab.report.units import usd


@pytest.mark.parametrize(
    ("amount", "text"), [(None, "-"), (0.0, "$0.00"), (0.0038, "$0.0038"), (0.0941, "$0.09"), (14320.5, "$14,320.50")]
)
def test_a_price_is_never_nothing_unless_it_is(amount, text):
    assert usd(amount) == text
