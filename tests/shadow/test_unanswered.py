"""docs/unanswered.md is what the program says of the installed torch."""

from pathlib import Path

import pytest
import torch

from tools.unanswered import document

pytestmark = pytest.mark.shadow

PAGE = Path(__file__).parents[2] / "docs" / "unanswered.md"


def test_the_page_is_that_of_the_installed_torch():
    page = PAGE.read_text(encoding="utf-8")
    if f"torch {torch.__version__}." not in page:
        pytest.skip("the page was made with another torch")
    assert document() == page
