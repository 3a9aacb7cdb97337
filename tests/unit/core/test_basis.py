"""How a time or a price is known, from a record's own words."""

import pytest

from memlab.core.basis import BOUND, CALIBRATED, EXACT, Basis, basis_of, comparable

ERROR = {"median": 0.08, "p90": 0.23}


@pytest.mark.parametrize(
    ("source", "steps", "summary", "basis"),
    [
        ("measured", {}, {"step_seconds_max": 0.2}, EXACT),
        ("predicted", {"error": ERROR}, {"step_seconds_max": 0.2}, Basis(CALIBRATED, 0.23)),
        ("predicted", {"error": ERROR, "basis_reason": "one only"}, {}, Basis(CALIBRATED, 0.23, "one only")),
        ("predicted", {"basis_reason": "no calibration"}, {}, Basis(BOUND, reason="no calibration")),
        ("predicted", {"error": ERROR}, {"step_seconds_max": None}, Basis(BOUND)),
        ("predicted", {}, {}, Basis(BOUND)),
    ],
)
def test_a_record_says_how_its_times_are_known(source, steps, summary, basis):
    assert basis_of(source, steps, summary) == basis


def test_a_bound_is_not_compared_with_another_value():
    bound, calibrated = Basis(BOUND), Basis(CALIBRATED, 0.23)

    assert comparable(EXACT, calibrated)
    assert not comparable(EXACT, bound)
    assert not comparable(bound, bound)


def test_a_value_lies_within_the_error_of_its_calibration():
    assert EXACT.range(2.0) == (2.0, 2.0)
    assert Basis(CALIBRATED, 0.25).range(2.0) == (1.5, 2.5)
    assert Basis(CALIBRATED, 1.5).range(2.0) == (0.0, 5.0)
    assert Basis(BOUND).range(2.0) == (2.0, None)
