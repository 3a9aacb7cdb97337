"""Where memlab keeps its cache."""

from pathlib import Path

from memlab.files import disk


def test_a_relative_cache_folder_is_ignored_and_said_once(monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert disk.cache_dir() == disk.cache_dir() == Path.home() / ".cache" / "memlab"
    assert capsys.readouterr().err.count("'not/absolute' is ignored") == 1
