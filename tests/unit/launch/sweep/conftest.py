"""Jobs of a sweep: of any lengths, and twelve of which some go wrong."""

import pytest


@pytest.fixture
def jobs(job):
    """``jobs([1, 2], {"zero_stage.stage": 1})``: a job for each length."""
    return lambda lengths, changes=None: [job({"seq_len.tokens": length, **(changes or {})}) for length in lengths]


@pytest.fixture
def twelve(job, jobs):
    def build():
        return [
            *jobs([5, 3, 4, 1, 2]),  # out of memory at 4
            *jobs([1], {"zero_stage.stage": 1}),
            *jobs([2], {"zero_stage.stage": 1, "measure.timeout_s": 1}),  # hangs
            *jobs([3], {"zero_stage.stage": 1}),
            *jobs([1, 2, 3], {"zero_stage.stage": 3}),  # a rank is killed at 2
            job({"offload.param": "cpu"}),  # means nothing at stage 2
        ]

    return build
