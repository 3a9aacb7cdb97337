"""Text of two explained runs: the settings and versions in which they differ."""

from memlab.analyse.diff import ChangedKey
from memlab.report.explain_text import settings


def test_the_settings_and_versions_that_differ_are_named():
    changes = [ChangedKey("zero_stage.memory_efficient_linear", (True, False)), ChangedKey("torch", ("2.11", None))]
    assert settings(changes) == (
        "The runs differ in zero_stage.memory_efficient_linear True -> False; torch 2.11 -> None."
    )
    assert settings([]) == "The runs have the same settings."
