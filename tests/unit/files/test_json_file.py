"""JSON that others wrote: bounded before it is read, plain after it."""

import json
import os
from pathlib import Path

import pytest

from memlab.core.errors import RecordError
from memlab.files import json_file
from memlab.files.json_file import DEEPEST, read_json


@pytest.fixture
def file(tmp_path):
    return tmp_path / "x.json"


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": [1, -2.5, null, true, "x"]}', {"a": [1, -2.5, None, True, "x"]}),
        (f"[{2**63 - 1}, {-(2**63)}]", [2**63 - 1, -(2**63)]),
        (f"[{10**30}]", [1e30]),
        ('["\\ud83d\\ude00"]', ["\N{GRINNING FACE}"]),
        (nested(DEEPEST), json.loads(nested(DEEPEST))),
    ],
)
def test_what_is_read(file, text, values):
    file.write_text(text)
    assert read_json(file) == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unreadable"),
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("[1e999]", "1e999 is not a finite number"),
        (f"[{10**400}]", "10000000000000000000 is not a finite number"),
        ("9" * 5000, "unreadable"),
        (nested(DEEPEST + 1), "nested more than 32 levels deep"),
        (nested(600), "nested more than 32 levels deep"),
        (nested(100_000), "nested too deeply"),
        ('{"a":' * 600 + "1" + "}" * 600, "nested more than 32 levels deep"),
        ('["\\ud800"]', "surrogates not allowed"),
        ('{"\\uDfff": 1}', "surrogates not allowed"),
    ],
)
def test_what_is_refused(file, text, words):
    file.write_text(text)
    with pytest.raises(RecordError, match=words) as error:
        read_json(file)
    assert str(error.value).startswith(f"{file}: unreadable (")


def test_a_pipe_is_refused_without_waiting_for_a_writer(file):
    os.mkfifo(file)
    with pytest.raises(RecordError, match="not a regular file"):
        read_json(file)


def test_links_devices_and_folders_are_refused(file, tmp_path):
    (tmp_path / "real.json").write_text("{}")
    file.symlink_to(tmp_path / "real.json")
    for path, words in (
        (file, "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "name a file"),
    ):
        with pytest.raises(RecordError, match=words):
            read_json(path)


def test_a_large_file_is_refused_unread(file, monkeypatch):
    with file.open("wb") as sparse:
        sparse.truncate(300 * 2**20)
    monkeypatch.setattr(json_file.json, "loads", None)
    with pytest.raises(RecordError, match="314,572,800 bytes; the limit is 67,108,864"):
        read_json(file)
