"""The probability that something fits is honest about how little is known."""

import pytest

from memlab.predict.odds import probability, shipped_ratios


def test_nothing_is_certain():
    ratios = {"a": [1.0], "b": [0.98, 1.02]}
    assert probability(lambda ratio: True, ratios) == (0.75, 2)
    assert probability(lambda ratio: False, ratios) == (0.25, 2)


def test_a_configuration_counts_once_however_many_points_it_has():
    ratios = {"a": [1.1] * 50, "b": [1.0]}
    assert probability(lambda ratio: ratio < 1.05, ratios)[0] == 0.5


def test_a_point_just_below_the_limit_depends_on_the_errors():
    ratios = {"a": [0.97, 0.99], "b": [1.01, 1.03]}
    likely, _ = probability(lambda ratio: ratio <= 1.02, ratios)
    assert likely == (1 + 0.5 + 1) / 4


def test_it_asks_few_times():
    asked = []
    ratios = {str(number): [1 + number / 100] for number in range(64)}
    probability(lambda ratio: asked.append(ratio) or ratio < 1.3, ratios)
    assert len(asked) <= 7


def test_what_ships_is_of_published_records():
    ratios = shipped_ratios()
    assert len(ratios) >= 10
    assert all(0.8 < ratio < 1.2 for values in ratios.values() for ratio in values)


@pytest.mark.parametrize("ratio", [1.0, 0.9999999])
def test_ratios_are_rounded_away_from_what_is_safe(ratio):
    seen = []
    probability(lambda value: seen.append(value) or True, {"a": [ratio]})
    assert seen == [1.0]
