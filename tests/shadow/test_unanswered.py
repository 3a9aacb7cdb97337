"""docs/unanswered.md is what the program says of the installed torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.shadow

PAGE = Path(__file__).parents[2] / "docs" / "unanswered.md"


def test_the_page_is_that_of_the_installed_torch():
    page = PAGE.read_text(encoding="utf-8")
    if f"torch {torch.__version__}." not in page:
        pytest.skip("the page was made with another torch")
    words = [sys.executable, "-m", "tools.unanswered"]
    assert subprocess.run(words, capture_output=True, text=True, check=True, cwd=PAGE.parents[1]).stdout == page
