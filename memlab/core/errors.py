"""Errors that a user can fix. Any other exception is a bug in memlab."""

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class MemlabError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do."""

    exit_code = 2  # nothing ran


class ConfigError(MemlabError):
    """A configuration that cannot be composed: an unknown key, group or option, or a value of the wrong kind."""


class UnknownKey(ConfigError):
    """A key that the schema lacks. ``key``: the dotted key; ``value``: its value; ``known``: the keys at its place."""

    def __init__(self, key: str, value: Any, known: Iterable[str]):
        above, dot, name = key.rpartition(".")
        super().__init__(f"Unknown key '{key}'. {nearest(name, known, above + dot)}")
        self.key, self.value = key, value


class WriteError(MemlabError):
    """A file that could not be written: the disk is full, or the user may not write there."""

    exit_code = 1  # something may have run


class FolderError(MemlabError):
    """A folder that memlab must not write into, or cannot."""


class RecordError(MemlabError):
    """A record that is absent, unreadable or of another schema version."""


class ShadowError(MemlabError):
    """The model or the engine cannot run on the simulated device. The message is the line that names the exception."""


def reason_of(error: Exception) -> str:
    """Describe in one line the exception that ended a point, for its record.

    For a :class:`MemlabError` this is its message; for any other exception its type, its message and the line of code.
    """
    if isinstance(error, MemlabError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())[:500]
    return f"unexpected {type(error).__name__}: {message} ({Path(frame.filename).name}, line {frame.lineno})"


def nearest(word: str, candidates: Iterable[str], above: str = "") -> str:
    """Make a hint for an error message: ``Did you mean 'x'?``, or all ``candidates`` if none is similar to ``word``.

    Candidates that begin with ``word`` come before similar ones: ``a100`` is short for ``a100_80g_x8``, not for
    ``h100_x8``. Of these, a candidate that begins with another one is left out: ``zero_stage.stage``. ``above``: what
    stands before the candidate that is meant: ``seq_len.`` before ``tokens``.
    """
    candidates = sorted(candidates)
    longer = [candidate for candidate in candidates if word and candidate.startswith(word)]
    shortest = [each for each in longer if not any(each != other and each.startswith(other) for other in longer)]
    same_letters = [each for each in candidates if sorted(each) == sorted(word)]  # modle: model, not mode
    if close := shortest or same_letters or get_close_matches(word, candidates, n=1, cutoff=0.5):
        return f"Did you mean {' or '.join(repr(above + each) for each in close)}?"
    return f"Choose one of: {', '.join(candidates)}."
