"""Files where other programs write: which are opened, and which are not."""

import os

import pytest

from memlab.files.redact_file import redact_file
from memlab.files.regular_file import create, read_regular


def test_a_linked_folder_is_not_followed_and_said_so(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("real")
    assert read_regular((tmp_path / "link" / "file").resolve()) == b"content"
    with pytest.raises(OSError, match=r"not a regular file \(links are not followed\)"):
        read_regular(tmp_path / "link" / "file")


def test_a_folder_that_cannot_be_listed_holds_files_that_can_be_read(tmp_path, monkeypatch):
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "file").write_bytes(b"content")
    for each in (tmp_path, folder):
        each.chmod(0o311)
    monkeypatch.chdir(tmp_path)
    if not (child := os.fork()):
        read = b""
        try:
            if os.getuid() == 0:
                os.setuid(65534)  # root may list every folder
            read = read_regular((folder / "file").relative_to(tmp_path))
        finally:
            os._exit(read != b"content")
    assert os.waitpid(child, 0)[1] == 0
    for each in (tmp_path, folder):
        each.chmod(0o700)


def test_of_a_long_log_the_end_is_kept_and_another_name_of_the_file_has_all(tmp_path):
    log, precious = tmp_path / "command.log", tmp_path / "precious"
    precious.write_bytes(b"first line\nsecond line\nValueError: boom\n")
    log.hardlink_to(precious)
    redact_file(log, longest=25)
    assert log.read_bytes() == b"memlab: the first 15 bytes were left out\nValueError: boom\n"
    assert precious.read_bytes().startswith(b"first line")


def test_a_folder_in_the_place_of_a_new_file_is_renamed(tmp_path):
    (tmp_path / "command.log" / "inside").mkdir(parents=True)
    create(tmp_path / "command.log").close()
    assert (tmp_path / "command.log").is_file()
    assert [path.name for path in tmp_path.glob("command.log.*/*")] == ["inside"]
