"""The digest of the code changes with what the code does, and not with what is said about it."""

import pytest

from memlab.predict.trace.code_digest import code_digest, code_of

CODE = b'''"""Module."""

SIZE = 1
"""Bytes."""


def double(size: int) -> int:
    """Double."""
    return 2 * size
'''


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        (b"Module.", b"Another."),
        (b"Bytes.", b"In bytes."),
        (b"Double.", b"Doubles."),
        (b"SIZE = 1", b"SIZE = 1  # one"),
    ],
)
def test_docstrings_and_comments_are_no_code(said, instead):
    assert code_of(CODE.replace(said, instead)) == code_of(CODE)


@pytest.mark.parametrize(("done", "instead"), [(b"SIZE = 1", b"SIZE = 2"), (b"2 *", b"3 *"), (b"size: int", b"size")])
def test_another_statement_is_other_code(done, instead):
    assert code_of(CODE.replace(done, instead)) != code_of(CODE)


def test_the_digest_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code_digest.cache_clear()
    first = code_digest("trace")
    code_digest.cache_clear()
    monkeypatch.setattr("memlab.predict.trace.code_digest.code_of", None)  # the second time nothing is parsed
    assert code_digest("trace") == first
    code_digest.cache_clear()
