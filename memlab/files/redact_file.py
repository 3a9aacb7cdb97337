"""Redaction of what other programs wrote: logs, the files of Hydra, and output as it arrives."""

import os
from collections.abc import Iterator
from pathlib import Path

from memlab.files.disk import replacing
from memlab.files.redaction import known_secrets, redact_bytes
from memlab.files.regular_file import ANY_SIZE, LARGEST, open_regular

PIECE = 1 << 20
"""Bytes that are read from a file at a time."""

LONG = 1 << 16
"""Bytes of a line that are kept back until it ends."""


class Redactor:
    """Blanks out secrets in output of any length that arrives in pieces. ``has_found``: whether there were any."""

    def __init__(self) -> None:
        self._secrets = list(map(os.fsencode, known_secrets()))
        self._rest = b""
        self.has_found = False

    def feed(self, data: bytes) -> bytes:
        """Return the next part of the output, clean. The end of ``data`` is kept back: a secret may begin there."""
        text = self._rest + data
        cut = self._cut(text)
        self._rest = text[cut:]
        return self._clean(text[:cut])

    def end(self) -> bytes:
        """Return the last part of the output."""
        return self._clean(self._rest)

    def _clean(self, text: bytes) -> bytes:
        clean = redact_bytes(text, self._secrets)
        self.has_found = self.has_found or clean != text
        return clean

    def _cut(self, text: bytes) -> int:
        """Return an index at which ``text`` can be cut without splitting a secret.

        It lies behind the last line end or, in a line longer than :data:`LONG`, behind the last blank, if there is one.
        """
        of_words = max((len(secret) for secret in self._secrets if len(secret.split()) > 1), default=0)
        end = max(0, len(text) - of_words)
        cut = max(text.rfind(b"\n", 0, end), text.rfind(b"\r", 0, end)) + 1
        if not cut and len(text) > LONG:
            cut = text.rfind(b" ", 0, end) + 1 or max(0, len(text) - max(map(len, self._secrets), default=0))
        across = (text.find(secret, max(0, cut - len(secret) + 1), cut + len(secret) - 1) for secret in self._secrets)
        return min([cut, *(start for start in across if start >= 0)])


def redact_file(path: Path, longest: int = LARGEST) -> None:
    """Blank out secrets in a text file of another program, piece by piece. Of a file of more than ``longest`` bytes,
    only the end is kept. Raises ``OSError`` if it is no regular file, and :class:`WriteError`."""
    redactor, left_out = Redactor(), max(0, path.lstat().st_size - longest)
    for _ in _pieces(path, redactor, left_out):
        if redactor.has_found or left_out:
            with replacing(path) as temporary, temporary.open("wb") as file:
                file.write(b"memlab: the first %d bytes were left out\n" % left_out if left_out else b"")
                file.writelines(_pieces(path, Redactor(), left_out))
            return


def _pieces(path: Path, redactor: Redactor, begin: int) -> Iterator[bytes]:
    """Yield the clean text of a file from ``begin`` on, or from the first line that begins after it."""
    with open_regular(path, ANY_SIZE) as file:
        file.seek(begin)
        if begin:
            file.readline(PIECE)
        while text := file.read(PIECE):
            yield redactor.feed(text)
        yield redactor.end()
