"""The console: as wide as COLUMNS says, or as a pipe."""

import io

import pytest

from memlab.report.text import PIPE_WIDTH, console


@pytest.mark.parametrize(
    ("columns", "width"), [(None, PIPE_WIDTH), ("40", 40), ("0", PIPE_WIDTH), ("wide", PIPE_WIDTH), ("-3", PIPE_WIDTH)]
)
def test_a_pipe_has_a_width_into_which_text_fits(monkeypatch, columns, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert console(io.StringIO()).width == width
