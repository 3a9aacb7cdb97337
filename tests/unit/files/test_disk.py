"""Where memlab keeps its cache."""

from pathlib import Path

import pytest

from memlab.core.errors import ConfigError, FolderError
from memlab.files import disk


def test_a_relative_cache_folder_is_ignored_and_said_once(monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert disk.cache_dir() == disk.cache_dir() == Path.home() / ".cache" / "memlab"
    assert capsys.readouterr().err.count("'not/absolute' is ignored") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ": No such file or directory; correct the path, or make its folder first."),
        (b"caf\xe9", ": not UTF-8 text (byte 3); save it as UTF-8."),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_that_says_what_to_do(tmp_path, content, words):
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as error, disk.explained(ConfigError, file, "data.path="):
        file.read_text(encoding="utf-8")
    assert str(error.value) == f"data.path={file}{words}"


def test_without_a_path_the_one_of_the_error_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=f"{tmp_path}/file/folder: Not a directory"), disk.explained(FolderError):
        (tmp_path / "file" / "folder").mkdir()
