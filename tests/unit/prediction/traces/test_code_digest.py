"""The digest of the code changes with what the code does, and not with what is said about it."""

import pytest

from memlab.prediction.traces.store import OF_TRACES, code_digest, code_of

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


def test_other_sizes_beside_the_code_are_another_digest(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("memlab.prediction.traces.store.MEMLAB", tmp_path)
    sizes = tmp_path / "simulator" / "sizes.json"
    sizes.parent.mkdir(parents=True)
    digests = set()
    for text in ("{}", '{"context": 1}'):
        sizes.write_text(text)
        code_digest.cache_clear()
        digests.add(code_digest(("simulator",)))
    assert len(digests) == 2
    code_digest.cache_clear()


def test_the_digest_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code_digest.cache_clear()
    first = code_digest(OF_TRACES)
    code_digest.cache_clear()
    monkeypatch.setattr("memlab.prediction.traces.store.code_of", None)  # the second time nothing is parsed
    assert code_digest(OF_TRACES) == first
    code_digest.cache_clear()
