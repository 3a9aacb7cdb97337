"""Lines and hinges, their intervals and errors, and what fits in a GPU."""

import pytest
from folders import MIB, make_config, make_record, write

from memlab.analyse.collect import collect
from memlab.analyse.fit import fit_all, fit_line, flat_until, leave_one_out, longest
from memlab.report.fit_text import capacity_text

WOBBLE = (0.3, -0.5, 0.1, 0.4, -0.3)


def wobbly(points):
    return [value + WOBBLE[index % 5] for index, value in enumerate(points)]


def test_a_line_is_found_with_its_interval():
    x = list(range(0, 100, 5))
    line = fit_line(x, wobbly(10 + 2 * each for each in x))
    assert line.hinge is None
    assert line.slope == pytest.approx(2, abs=line.slope_interval)
    assert line.slope_interval < 0.01
    assert line.r2 > 0.9999
    assert 0.5 < line.interval_at(50) < 1.5
    assert line.interval_at(1000) > line.interval_at(50)


def test_a_hinge_is_found_with_its_interval():
    x = list(range(0, 200, 4))
    line = fit_line(x, wobbly(10 + 3 * max(0, each - 80) for each in x))
    assert line.hinge == 80
    low, high = line.hinge_interval
    assert low <= 80 <= high
    assert line.slope == pytest.approx(3, abs=0.01)


def test_a_line_with_noise_is_not_called_a_hinge():
    x = list(range(1, 30))
    assert fit_line(x, wobbly(5 * each for each in x)).hinge is None


def test_an_exact_line_and_the_fewest_points():
    line = fit_line([1, 2, 3], [10, 20, 30])
    assert (line.at(4), line.r2) == (pytest.approx(40), 1)
    assert fit_line([1, 2], [10, 20]).interval_at(3) == float("inf")
    with pytest.raises(ValueError, match="two different x"):
        fit_line([1, 1], [1, 2])


def test_leave_one_out_is_the_error_of_a_fit_without_the_point():
    errors = leave_one_out([1, 2, 3, 4], [10, 20, 30, 44])
    assert errors[-1] == pytest.approx(40 / 44 - 1)


def test_leave_one_out_of_many_points_agrees_with_that_of_few(monkeypatch):
    x = list(range(1, 60))
    y = wobbly(10 + 2 * each for each in x)
    slowly = leave_one_out(x, y)
    monkeypatch.setattr("memlab.analyse.fit.MANY", 10)
    assert leave_one_out(x, y) == pytest.approx(slowly)


def test_the_flat_part():
    assert flat_until([1, 2, 3, 4], [10, 11, 12, 10], tolerance=1) == 2
    assert flat_until([1, 2], [10, 20], tolerance=1) is None


@pytest.fixture
def sweep(tmp_path):
    """100 MiB and 1 MiB a token, to the byte, in reserved memory 20 MiB more."""
    for tokens in (100, 200, 300, 400):
        write(tmp_path, make_record(make_config(tokens), allocated=(100 + tokens) * MIB))
    return tmp_path


def test_what_fits(sweep):
    (fit,), without = fit_all(collect([sweep]).runs)
    assert not without
    assert fit.line.intercept == pytest.approx(120 * MIB)
    assert fit.largest_error < 1e-9
    answer = longest(fit, 1.0, margin=0)
    assert answer.tokens == 1024 - 120
    assert (answer.sequence(2), answer.batch(400), answer.limit) == (452, 2, "memory")
    assert answer.extrapolated
    assert longest(fit, 1.0, margin=0.5).tokens == 512 - 120
    assert longest(fit, 0.05).tokens is None


def test_what_fits_by_the_line_names_the_most_that_was_tried(sweep):
    (fit,), _ = fit_all(collect([sweep]).runs)
    beyond, within = (capacity_text(fit, longest(fit, memory, 0.0), memory, 0.0) for memory in (0.6, 0.4))
    assert beyond.endswith("This is by the line: the most that was tried is 400 tokens.")
    assert "up to 494 tokens" in beyond and "tried" not in within


def test_an_out_of_memory_limits_the_answer(sweep):
    write(sweep, make_record(make_config(tokens=500), status="gpu_oom"))
    (fit,), _ = fit_all(collect([sweep]).runs)
    answer = longest(fit, 1.0)
    assert (answer.tokens, answer.limit) == (400, "oom")


def test_too_few_points_are_told(tmp_path):
    write(tmp_path, make_record())
    fits, ((_, reason),) = fit_all(collect([tmp_path]).runs)
    assert not fits
    assert "needs three different token counts" in reason
