"""Numbers as people read them."""

import pytest

from memlab.core.basis import BOUND, CALIBRATED, EXACT, Basis
from memlab.report.units import (
    about,
    duration_of,
    name,
    percent,
    places,
    quantity,
    seconds,
    signed_percent,
    signed_quantity,
    signed_size,
    size,
    usd,
    usd_of,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "-"),
        (0.0, "$0.00"),
        (0.0038, "$0.0038"),
        (0.0941, "$0.094"),
        (0.0499, "$0.050"),
        (0.0000961, "$0.000096"),
        (14320.5, "$14,320.50"),
    ],
)
def test_a_price_is_never_nothing_unless_it_is(amount, text):
    assert usd(amount) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(5.84e-5, "58.4 µs"), (0.00969, "9.69 ms"), (0.4297, "0.430 s"), (1.5, "1.50 s"), (1234.5, "1,234 s")],
)
def test_a_time_has_three_figures(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("size", "text"), [(139.8 * GIB, "139.8"), (46.46 * GIB, "46.5"), (1.023 * GIB, "1.02"), (0.0333 * GIB, "0.033")]
)
def test_a_size_in_a_sentence_has_the_figures_that_matter(size, text):
    assert about(size) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (139.8 * GIB, "139.8 GiB"),
        (0.733 * GIB, "0.73 GiB"),
        (GIB / 16, "64.0 MiB"),
        (GIB / 256, "4.00 MiB"),
        (130_000, "0.12 MiB"),
        (3 * 1024, "3.00 KiB"),
        (44, "44 bytes"),
        (0, "0 bytes"),
    ],
)
def test_a_small_size_has_a_smaller_unit(nbytes, text):
    assert size(nbytes) == text


@pytest.mark.parametrize(("nbytes", "text"), [(12 * GIB, "+12.0 GiB"), (-GIB / 256, "-4.00 MiB"), (0, "+0 bytes")])
def test_a_change_of_a_size_has_its_sign(nbytes, text):
    assert signed_size(nbytes) == text


@pytest.mark.parametrize(("sizes", "count"), [([None], 3), ([9 * GIB, 0], 3), ([57 * GIB, GIB], 2), ([-139 * GIB], 1)])
def test_a_table_shows_four_figures_of_its_largest_size(sizes, count):
    assert places(sizes) == count


@pytest.mark.parametrize(
    ("share", "text"), [(None, "-"), (-0.2254, "-22.5 %"), (0.0, "+0.0 %"), (-0.0001, "+0.0 %"), (12.345, "+1,234 %")]
)
def test_a_share_is_signed_and_a_large_one_has_no_decimals(share, text):
    assert signed_percent(share) == text


@pytest.mark.parametrize(("size", "text"), [(-2 * GIB, "-2.000 GiB"), (-1024, "+0.000 GiB"), (GIB, "+1.000 GiB")])
def test_a_change_that_is_shown_as_nothing_is_not_negative(size, text):
    assert signed_quantity("peak_reserved_bytes", size) == text


def test_a_percentage_has_a_space_before_its_sign():
    assert [percent(0.05), percent(0.998, 1)] == ["5 %", "99.8 %"]


def test_a_short_step_is_not_a_row_of_zeros():
    assert name("step_seconds") == "step time"
    assert quantity("step_seconds", 0.00003653) == "36.5 µs"
    assert signed_quantity("step_seconds", -0.00003653) == "-36.5 µs"


CALIBRATION = Basis(CALIBRATED, 0.23)
LOWER = Basis(BOUND, reason="no calibration for RTX 4090")


@pytest.mark.parametrize(
    ("key", "value", "basis", "text"),
    [
        ("step_seconds", 0.35, EXACT, "0.350 s"),
        ("step_seconds", 0.35, CALIBRATION, "0.350 s ± 23 %"),
        ("step_seconds", 0.4, LOWER, "at least 0.400 s"),
        ("step_seconds", None, LOWER, "-"),
        ("tokens_per_second", 5120.0, LOWER, "at most 5,120/s"),
        ("tokens_per_second", 5120.0, CALIBRATION, "5,120/s ± 23 %"),
        ("usd_per_million_tokens", 0.14, LOWER, "at least $0.14"),
        ("peak_reserved_bytes", 2 * GIB, LOWER, "2.000 GiB"),
    ],
)
def test_a_quantity_says_how_it_is_known(key, value, basis, text):
    assert quantity(key, value, basis) == text


@pytest.mark.parametrize(
    ("basis", "seconds", "time", "dollars"),
    [
        (EXACT, 875, "14 min 35 s", "$0.85"),
        (CALIBRATION, 875, "11 to 18 min", "$0.65 to $1.05"),
        (CALIBRATION, 36_000, "7.7 to 12 h", "$0.65 to $1.05"),
        (Basis(CALIBRATED, 0.001), 875, "15 min", "$0.85"),
        (LOWER, 875, "at least 14 min 35 s", "at least $0.85"),
        (LOWER, 0.35, "at least 0.350 s", "at least $0.85"),
        (EXACT, 0.0352, "35.2 ms", "$0.85"),
        (EXACT, 0, "0 s", "$0.85"),
    ],
)
def test_a_run_takes_and_costs_what_its_step_lets_know(basis, seconds, time, dollars):
    assert duration_of(seconds, basis) == time
    assert usd_of(0.85, basis) == dollars


def test_a_range_of_small_prices_is_as_wide_as_its_error():
    assert usd_of(0.0402, CALIBRATION) == "$0.031 to $0.049"
