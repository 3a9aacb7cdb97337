"""Text of two explained runs: the settings and versions in which they differ."""

import io

from rich.console import Console

from memlab.analyse.diff import ChangedKey
from memlab.report.explain_text import show_settings


def test_the_settings_and_versions_that_differ_are_named():
    out = Console(record=True, width=100, file=io.StringIO())
    changes = [ChangedKey("zero_stage.memory_efficient_linear", (True, False)), ChangedKey("torch", ("2.11", None))]
    show_settings(changes, out)
    show_settings([], out)
    first, second = out.export_text().strip().splitlines()
    assert first == "The runs differ in zero_stage.memory_efficient_linear True -> False; torch 2.11 -> None."
    assert second == "The runs have the same settings."
