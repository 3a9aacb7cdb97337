"""HTML text of the page: style, script and data, and a content security policy that allows only this script."""

import base64
import hashlib
import html
import json
import math
import re
from importlib.resources import files
from typing import Any

ASSETS = files("memlab.report.page") / "assets"

STYLES = ("vendor/uPlot.min.css", "page.css")

SCRIPTS = (
    "base.js",
    "theme.js",
    "sorting.js",
    "summary.js",
    "details.js",
    "diff.js",
    "table.js",
    "charts.js",
    "main.js",
)
"""Scripts of the page, in this order in one scope."""


def page(payload: dict[str, Any]) -> str:
    """Write the whole file. All text from outside memlab is in JSON that no parser reads as markup or script."""
    style = "\n".join(_asset(name) for name in STYLES)
    own = "\n".join(_asset(name) for name in SCRIPTS)
    script = f'{_asset("vendor/uPlot.iife.min.js")}\n(() => {{\n"use strict";\n{own}\n}})();\n'
    assert "</script" not in script.lower() and "</style" not in style.lower()
    parts = {
        "policy": _policy(script, style),
        "title": html.escape(payload["title"]),
        "style": style,
        "data": embedded_json(payload),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def embedded_json(values: Any) -> str:
    """Write JSON for a script element in ASCII.

    It has no ``<``, so no tag or comment can begin in it, and no control characters for an editor or a terminal.
    """
    try:
        text = _json(values)
    except ValueError:  # replaced only after an error: a page of 10,000 runs has a million numbers
        text = _json(_finite(values))
    for letter in "<>&\x7f":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _json(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _finite(values: Any) -> Any:
    """Replace infinite numbers and NaN by ``None``: a configuration can hold them, JSON cannot."""
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _policy(script: str, style: str) -> str:
    rules = {
        "default-src": "'none'",
        "script-src": _fingerprint(script),
        "style-src": _fingerprint(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _fingerprint(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
