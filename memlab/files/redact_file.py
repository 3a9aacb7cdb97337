"""Redaction of text files that other programs wrote: logs, and the files of Hydra."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from memlab.files.disk import replacing
from memlab.files.redaction import known_secrets, redact

PIECE = 1 << 20
"""Number of characters that are read from a file at a time."""


def redact_file(path: Path) -> None:
    """Blank out secrets in a text file of another program. The file is read in pieces, since a log may be very long."""
    if any(was != clean for was, clean in _pieces(path)):
        with replacing(path) as temporary, _as_it_is(temporary, "w") as file:
            file.writelines(clean for _, clean in _pieces(path))


def _as_it_is(path: Path, mode: str = "r") -> IO[str]:
    """Open a text file so that invalid UTF-8 bytes and line ends stay unchanged."""
    return path.open(mode, encoding="utf-8", errors="surrogateescape", newline="")


def _pieces(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of the file twice: as it was, and without its secrets."""
    secrets = known_secrets()
    with _as_it_is(path) as file:
        rest = ""
        while text := file.read(PIECE):
            text = rest + text
            cut = _cut(text, secrets)
            yield text[:cut], redact(text[:cut], secrets)
            rest = text[cut:]
        yield rest, redact(rest, secrets)


def _cut(text: str, secrets: Iterable[str]) -> int:
    """Return an index at which ``text`` can be cut without splitting a secret.

    It lies behind the last line end or, in a line longer than a piece, behind the last blank, if there is one.
    """
    end = len(text) - max(map(len, secrets), default=0)
    cut = text.rfind("\n", 0, end) + 1 or text.rfind(" ", 0, end) + 1 or end
    across = (text.find(secret, max(0, cut - len(secret) + 1), cut + len(secret) - 1) for secret in secrets)
    return min([cut, *(start for start in across if start >= 0)])
