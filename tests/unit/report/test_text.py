"""The console: as wide as COLUMNS says, or as a pipe."""

import io

import pytest

from memlab.report.screen import WIDTH
from memlab.report.text import PIPE_WIDTH, TextTable, console, show_text_table


@pytest.mark.parametrize(
    ("columns", "width"), [(None, PIPE_WIDTH), ("40", 40), ("0", PIPE_WIDTH), ("wide", PIPE_WIDTH), ("-3", PIPE_WIDTH)]
)
def test_a_pipe_has_a_width_into_which_text_fits(monkeypatch, columns, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert console(io.StringIO()).width == width
    assert console(io.StringIO(), pipe_width=WIDTH).width == (40 if columns == "40" else WIDTH)


ROWS = [
    ("first_optimizer_step", "25.944", "64.769", "optimizer states 25.8 GiB, temporaries of the step 12.9 GiB", "x")
]
TABLE = TextTable(("GiB in", "start", "peak", "added", "of it still there"), ROWS, (1, 2), spare=(4, 1))


def printed(monkeypatch, width: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    out = console(io.StringIO())
    show_text_table(TABLE, out)
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def test_a_table_of_texts_breaks_between_words_and_does_without_columns_where_it_is_narrow(monkeypatch):
    for width, dropped in ((200, ""), (60, ""), (50, "of it still there"), (42, "start, of it still there")):
        lines = printed(monkeypatch, width)
        text = " ".join(" ".join(lines).split())
        assert "first_optimizer_step" in text and "64.769" in text and ("25.944" in text) == ("start" not in dropped)
        assert all(word in text for word in ("optimizer", "temporaries", "12.9"))
        assert text.endswith(f"The terminal is too narrow for: {dropped}.") == bool(dropped)


def test_where_not_even_the_rest_fits_words_are_folded(monkeypatch):
    assert any("64.769" in line for line in printed(monkeypatch, 26))
