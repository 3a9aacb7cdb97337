"""What an exception in a rank is called in the record."""

import pytest

from memlab.meters.script_errors import describe

pytestmark = pytest.mark.cpu

NO_LAUNCHER = "the command lacks its launcher, which sets this variable: torchrun --nproc_per_node=<GPUs>"
NO_WORLD_SIZE = "Error initializing torch.distributed: environment variable WORLD_SIZE expected, but not set"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ImportError("\nA library was not found.\nInstall it."), "ImportError: A library was not found."),
        (KeyError("loss"), "KeyError: 'loss'"),
        (KeyError("RANK"), f"KeyError: 'RANK': {NO_LAUNCHER}"),
        (ValueError(NO_WORLD_SIZE), f"ValueError: {NO_WORLD_SIZE}: {NO_LAUNCHER}"),
        (StopIteration(), "StopIteration"),
        (
            ValueError("Please correct these DeepSpeed values:\n- ds batch=7 vs hf batch=1\nOr write 'auto'."),
            "ValueError: Please correct these DeepSpeed values: - ds batch=7 vs hf batch=1",
        ),
    ],
)
def test_the_reason_is_one_line(error, reason):
    assert describe(error) == ("failed", reason, None)
