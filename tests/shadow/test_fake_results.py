"""A result that is computed without FakeTensorMode is the one that FakeTensorMode computes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.shadow


def test_meta_kernels_give_the_results_of_fake_tensor_mode():
    words = [sys.executable, "-m", "tests.shadow.results_of_meta"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == ""
