"""Redaction of secrets in everything that memlab writes: of variables and options, known tokens, credentials in URLs.

:data:`TOKENS` lists the known forms of tokens. memlab does not use the library detect-secrets: its version 1.5.0 knows
neither Hugging Face's tokens nor GitHub's fine-grained ones, and imports an HTTP client.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from memlab.files.disk import replacing

BLANK = "<redacted>"

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|CREDENTIAL|DATABASE_URL|CONNECTION_STRING"
    r"|_(KEY|PASS|PAT|PWD|PW|DSN)$",
    re.IGNORECASE,
)
"""Names of environment variables that hold secrets. PWD alone is not one: it is the current folder."""

_SECRET_OPTION = re.compile(
    r"(?:^|[._-])(?:token|secret|password|passwd|passphrase|(?:api|access|secret)[_-]?key|credentials?)$", re.IGNORECASE
)
"""Names of command-line options that hold secrets. They are fewer than of variables: --tokenizer is not one."""

TOKENS = {
    "AWS": r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
    "DigitalOcean": r"do[opr]_v1_[a-f0-9]{32,}",
    "GitHub": r"(?:gh[pousr]|github_pat)_\w{20,}",
    "GitLab": r"gl(?:pat|dt|rt|ft|soat|cbt|ptt|imt|agent|oas)-[\w-]{20,}",
    "Google": r"AIza[\w-]{35}|ya29\.[\w-]{20,}",
    "Hugging Face": r"(?:hf|api_org)_[A-Za-z0-9]{20,}",
    "npm": r"npm_[A-Za-z0-9]{36}",
    "NVIDIA": r"nvapi-[\w-]{20,}",
    "OpenAI, Anthropic": r"sk-[\w-]{20,}",
    "PyPI": r"pypi-[\w-]{50,}",
    "Replicate": r"r8_[A-Za-z0-9]{30,}",
    "SendGrid": r"SG\.[\w-]{20,}\.[\w-]{20,}",
    "Slack": r"(?:xox[a-z]|xapp)-[\w-]{10,}",
    "Stripe": r"[rs]k_(?:live|test|prod)_\w{10,}",
    "signed JSON (RFC 7519)": r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+",
}
"""Issuer -> the form of its tokens. The prefixes come from gitleaks' default rules (github.com/gitleaks/gitleaks,
config/gitleaks.toml, read in November 2026) and from the issuers. Lengths are minima: longer tokens match too."""

_TOKENS = re.compile(rf"\b(?:{'|'.join(TOKENS.values())})")

_URL_CREDENTIALS = re.compile(
    r"(?<=://)(?:"
    r"[^/\s\"'<>:@\[]+:(?!\d*(?:[/?#]|$))(?:(?!://)[^\s\"'<>])+"  # user:password with any password, but not host:port
    r"|[^/\s\"'<>]+"
    r")(?=@)"
)
_URL_PARAMETERS = re.compile(
    r"(?<=[?&])((?:[\w.-]*(?:token|secret|password|passwd|signature|api_?key|access_?key|credential)|key|sig|auth|pwd)=)"
    r"[^&#\s\"'<>]+",
    re.IGNORECASE,
)
"""Secret URL parameters, among them access_token (RFC 6750), X-Amz-Signature (AWS), sig (Azure) and key (Google)."""

PIECE = 1 << 20
"""Number of characters that are read from a file at a time."""


def redact(text: str, secrets: Iterable[str] | None = None) -> str:
    """Blank out secrets in ``text``: ``secrets``, known tokens, and credentials in URLs.

    ``secrets``: default, :func:`known_secrets`.
    """
    for secret in known_secrets() if secrets is None else secrets:
        text = text.replace(secret, BLANK)
    text = _URL_CREDENTIALS.sub(BLANK, _TOKENS.sub(BLANK, text))
    return _URL_PARAMETERS.sub(rf"\1{BLANK}", text)


def known_secrets() -> list[str]:
    """List the values of variables and of this process's options with secret-looking names.

    The longest is first, since one value may contain another.
    """
    named = [*((name, value) for name, value in os.environ.items() if is_secret_name(name)), *_secret_options()]
    return sorted({value for _, value in named if len(value) >= 8}, key=len, reverse=True)


def _secret_options() -> Iterator[tuple[str, str]]:
    """Yield name and value of ``--name value``, ``--name=value`` and ``name=value``, also inside a quoted command.

    A value such as ``<|im_end|>`` is a tokenizer's special token.
    """
    words = [*sys.argv, *(part for word in sys.argv if " " in word for part in word.split())]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, is_given, value = word.partition("=")
        value = value if is_given else following * word.startswith("-")
        if _SECRET_OPTION.search(name) and not value.startswith(("-", "<")):
            yield name, value.strip("\"'")


def has_credentials(text: str) -> bool:
    """Whether ``text`` contains a URL with a password or a token before its host."""
    return bool(_URL_CREDENTIALS.search(text))


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name is assumed to hold a secret."""
    return bool(_SECRET_NAME.search(name))


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
