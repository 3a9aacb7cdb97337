"""The errors that are a person's to fix. Everything else that is raised is a bug in memlab."""

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class MemlabError(Exception):
    """Bad input. The message is one line that says what is wrong, where, and what to do."""

    exit_code = 2  # nothing ran


class ConfigError(MemlabError):
    """A configuration that cannot be composed: an unknown key, group or option, or a value of the wrong kind."""


class WriteError(MemlabError):
    """A file of a run folder that could not be written: the disk is full, or not ours to write."""

    exit_code = 1  # something may have run


class FolderError(MemlabError):
    """A folder that memlab must not or cannot write into."""


class RecordError(MemlabError):
    """A run folder whose record is absent, unreadable or of another schema version."""


def reason_of(error: Exception) -> str:
    """One line for the record of a point that an exception ended: a :class:`MemlabError` in its own words, of any other
    its type, its message and the line of code that raised it."""
    if isinstance(error, MemlabError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())[:500]
    return f"unexpected {type(error).__name__}: {message} ({Path(frame.filename).name}, line {frame.lineno})"


def nearest(word: str, candidates: Iterable[str]) -> str:
    """A hint for an error message: ``Did you mean 'x'?`` where one is close, all of ``candidates`` where none is."""
    candidates = sorted(candidates)
    close = get_close_matches(word, candidates, n=1, cutoff=0.5)
    if close:
        return f"Did you mean '{close[0]}'?"
    return f"Choose one of: {', '.join(candidates)}."
