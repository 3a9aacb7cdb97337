"""Cells that a spreadsheet would run."""

import pytest

from memlab.files.spreadsheet import escaped, unescaped


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1"])
def test_formulas_become_text_and_come_back(text):
    assert escaped(text) == "'" + text
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize("text", ["", "zero3", "a=b", "1", "'quoted'", "'", '"=1"'])
def test_any_other_text_is_as_it_is(text):
    assert escaped(text) == unescaped(text) == text
