"""Redaction of secrets in everything that memlab writes: of variables and options, known tokens, credentials in URLs.

:data:`TOKENS` lists the known forms of tokens. memlab does not use the library detect-secrets: its version 1.5.0 knows
neither Hugging Face's tokens nor GitHub's fine-grained ones, and imports an HTTP client. This module imports the
standard library alone, since the ranks of a command load a copy of it (memlab/meters/install.py).
"""

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

BLANK = "<redacted>"
_BLANK = BLANK.encode()

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|CREDENTIAL|DATABASE_URL|CONNECTION_STRING"
    r"|_(KEY|PASS|PAT|PWD|PW|DSN|AUTH)$",
    re.IGNORECASE,
)
"""Names of environment variables that hold secrets. PWD alone is not one: it is the current folder."""

_SECRET_OPTION = re.compile(
    r"(?:^|[._-])(?:token|secret|password|passwd|passphrase|pass|pwd|pw|(?:api|access|secret)[_-]?key|credentials?)$",
    re.IGNORECASE,
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

_TOKENS = re.compile(rf"\b(?:{'|'.join(TOKENS.values())})".encode())

_IN_TOKENS = re.compile(rb"[\w.-]")
_FOLDED = bytes(ord("x") if _IN_TOKENS.match(bytes([letter])) else ord(" ") for letter in range(256))
"""Table for ``bytes.translate``: which letters a token can have."""

_MARKS = (b"_", b"-", b".", b"AKIA", b"ASIA", b"ABIA", b"ACCA", b"AIza")
"""Each token has one of them."""

_SHORTEST = b"x" * 15
"""As many letters as the shortest token has: xoxb-, and ten more."""

_URL_CREDENTIALS = re.compile(
    rb"(://)(?:"
    rb"[^/\s\"'<>:@\[]+:(?!\d*(?:[/?#]|$))(?:(?!://)[^\s\"'<>])+"  # user:password, any password, but not host:port
    rb"|[^/\s\"'<>]+"
    rb")(?=@)"
)
_URL_PARAMETERS = re.compile(
    rb"([?&](?:[\w.-]*(?:token|secret|password|passwd|signature|api_?key|access_?key|credential)|key|sig|auth|pwd)=)"
    rb"[^&#\s\"'<>]+",
    re.IGNORECASE,
)
"""Secret URL parameters, among them access_token (RFC 6750), X-Amz-Signature (AWS), sig (Azure) and key (Google)."""


def redact(text: str, secrets: Iterable[str] | None = None) -> str:
    """Blank out secrets in ``text``: ``secrets``, known tokens, and credentials in URLs.

    ``secrets``: default, :func:`known_secrets`.
    """
    known = known_secrets() if secrets is None else secrets
    return redact_bytes(text.encode(errors=ANY), [secret.encode(errors=ANY) for secret in known]).decode(errors=ANY)


ANY = "surrogatepass"
"""How text is encoded that may have halves of characters."""


def redact_bytes(text: bytes, secrets: Iterable[bytes]) -> bytes:
    """Blank out secrets in UTF-8 text, as :func:`redact`. 100 MB without secrets take about a second."""
    for secret in secrets:
        text = text.replace(secret, _BLANK)
    text = _without_tokens(text)
    if b"://" in text:
        text = _URL_CREDENTIALS.sub(rb"\1" + _BLANK, text)
    return _URL_PARAMETERS.sub(rb"\1" + _BLANK, text) if b"?" in text or b"&" in text else text


def _without_tokens(text: bytes) -> bytes:
    """Blank out known tokens. Only words of their length are looked at: the pattern alone takes ten times as long."""
    if not any(mark in text for mark in _MARKS):
        return text
    folded, parts, done, end = text.translate(_FOLDED), [], 0, 0
    while (begin := folded.find(_SHORTEST, end)) >= 0:
        end = folded.find(b" ", begin) % (len(text) + 1)  # not found, -1: the last word
        word = text[begin:end]
        clean = _clean_word(word) if len(word) < _LONG else _TOKENS.sub(_BLANK, word)
        if clean != word:
            parts += [text[done:begin], clean]
            done = end
    return b"".join([*parts, text[done:]])


_LONG = 1000


@lru_cache(10_000)
def _clean_word(word: bytes) -> bytes:
    """Blank out tokens in a word, which logs often repeat."""
    return _TOKENS.sub(_BLANK, word)


def redact_values(values: Any, secrets: Sequence[str]) -> Any:
    """Blank out secrets in all texts of nested values, and replace NaN and infinity, which JSON lacks, by ``None``.

    Secrets are removed before a conversion to JSON: in JSON text, a secret may be escaped, and a number may look like
    a secret.
    """
    if isinstance(values, dict):
        return {redact_values(key, secrets): redact_values(value, secrets) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [redact_values(value, secrets) for value in values]
    if isinstance(values, str):
        return redact(values, secrets)
    return None if isinstance(values, float) and not math.isfinite(values) else values


def known_secrets() -> list[str]:
    """List the values of variables and of this process's options with secret-looking names.

    The longest is first, since one value may contain another.
    """
    found = {value for name, value in os.environ.items() if is_secret_name(name) and len(value) >= 8}
    return sorted(found | {value for value in _secret_options() if len(value) >= 6}, key=len, reverse=True)


def _secret_options() -> Iterator[str]:
    """Yield the secret values of ``--name value``, ``--name=value`` and ``name=value``, also inside a quoted command.

    A value such as ``<|im_end|>`` is a tokenizer's special token.
    """
    words = [*sys.argv, *(part for word in sys.argv if " " in word for part in word.split())]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, is_given, value = word.partition("=")
        value = value if is_given else following * word.startswith("-")
        if _SECRET_OPTION.search(name) and not value.startswith(("-", "<")):
            yield value.strip("\"'")


def has_credentials(text: str) -> bool:
    """Whether ``text`` contains a URL with a password or a token before its host."""
    return bool(_URL_CREDENTIALS.search(text.encode(errors=ANY)))


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name is assumed to hold a secret."""
    return bool(_SECRET_NAME.search(name))
