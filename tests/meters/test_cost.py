"""The benchmark of what the meters cost (benchmarks/attach.py), at its smallest."""

import pytest

from benchmarks.attach import alternate, cost_of_steps, interval_of_median


@pytest.mark.cpu
@pytest.mark.long(10)
def test_meters_work_in_the_metered_blocks_only():
    """``alternate`` fails if the meters count other steps than those of the warm-up and the metered blocks."""
    blocks = alternate("raw_loop", "tiny", warmup=1, steps=2, pairs=2)
    assert [block["kind"] for block in blocks] == ["bare", "metered", "metered", "bare"]
    assert all(len(block["step_seconds"]) == 1 for block in blocks)


def test_cost_is_that_of_a_pair_in_either_order():
    bare, metered = {"kind": "bare", "step_seconds": [1.0, 3.0]}, {"kind": "metered", "step_seconds": [2.0, 3.0]}
    costs = cost_of_steps([bare, metered, metered, bare, bare, metered, metered, bare] * 2)
    assert set(costs.values()) == {0.25}


def test_interval_of_a_median():
    """2 P(B < k) is 3.1 % for k = 1 of 6 values, 4.1 % for k = 6 of 20 and 11.5 % for k = 7."""
    assert interval_of_median([float(value) for value in range(6)]) == (0.0, 5.0)
    assert interval_of_median([float(value) for value in range(20)]) == (5.0, 14.0)
    with pytest.raises(ValueError, match="5 values are too few"):
        interval_of_median([0.0] * 5)
