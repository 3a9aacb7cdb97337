"""What an exception in a rank is called in the record."""

import pytest

from memlab.attach.script_errors import describe

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ImportError("\nA library was not found.\nInstall it."), "ImportError: A library was not found."),
        (KeyError("loss"), "KeyError: 'loss'"),
        (StopIteration(), "StopIteration"),
        (
            ValueError("Please correct these DeepSpeed values:\n- ds batch=7 vs hf batch=1\nOr write 'auto'."),
            "ValueError: Please correct these DeepSpeed values: - ds batch=7 vs hf batch=1",
        ),
    ],
)
def test_the_reason_is_one_line(error, reason):
    assert describe(error) == ("failed", reason, None)
