"""A data file of one JSON object a line: what is wrong with it is told with file and line."""

import os

import pytest

from memlab.core.errors import ConfigError
from memlab.files.json_file import check


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mine.jsonl"


@pytest.mark.parametrize(
    "text", ['{"text": "a"}', '{"text": "a", "n": 1}\n\n{"text": ""}\n', '\ufeff{"text": "a"}\r\n{"text": "é"}\r\n']
)
def test_one_object_a_line_is_as_it_should_be(file, text):
    file.write_text(text, encoding="utf-8", newline="")
    check(file, "text")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "data.path={file}: the file is empty. Write one JSON object a line into it."),
        (b"\n \n", "data.path={file}: the file is empty. Write one JSON object a line into it."),
        (b'{"text":"a"}\n{"text":\n', "{file}:2: not a JSON object (Expecting value). Write one JSON object a line."),
        (b'{"text":"a"}\n\n3\n', "{file}:3: int, not a JSON object. Write one JSON object a line."),
        (b"null\n", "{file}:1: NoneType, not a JSON object. Write one JSON object a line."),
        (b'{"txt":"a"}\n', "{file}:1: no field 'text'. Did you mean 'txt'? Set data.text_field=..."),
        (b'{"text":"a"}\n{"text":null}\n', "{file}:2: the field 'text' holds null, not a text."),
        (b'{"text":"\xe9"}\n', "{file}:1: not a JSON object ('utf-8' codec can't decode byte 0xe9"),
        (b"[" * 100_000 + b"\n", "{file}:1: not a JSON object ("),
    ],
)
def test_what_is_broken_is_told_with_its_line(file, content, message):
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        check(file, "text")
    assert str(error.value).startswith(message.format(file=file))
    assert "\n" not in str(error.value)


def test_a_path_that_is_no_file_is_told(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory"):
        check(tmp_path / "nowhere", "text")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError, match="not a file"):
            check(path, "text")


def test_no_more_is_read_than_asked_for(file):
    file.write_text('{"text": "a"}\n' * 100 + "broken\n")
    check(file, "text", most_bytes=1000)
    with pytest.raises(ConfigError, match=":101: "):
        check(file, "text")
