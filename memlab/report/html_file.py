"""HTML pages in one file: style, script and data, and a content security policy that allows only this script.

A page needs no network, and nothing in its data can make it run code.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from memlab.system.terminal import safe

SHARED = files("memlab.report") / "assets"
"""Style and scripts that all pages share."""


def html_file(payload: dict[str, Any], package: str, scripts: Sequence[str]) -> str:
    """Write the whole file. All text from outside memlab is in JSON that no parser reads as markup or script.

    ``payload``: the page's data, with its ``title``. ``package``: the one whose ``assets`` has the page's template,
    its style and its ``scripts``, which run in this order, after those of all pages and in one scope with them.
    """
    assets = files(package) / "assets"
    style = "\n".join(map(_text, (SHARED / "common.css", assets / "page.css")))
    shared = (SHARED / f"{name}.js" for name in ("elements", "theme", "canvas"))
    own = "\n".join(map(_text, (*shared, *(assets / f"{name}.js" for name in scripts))))
    script = f'(() => {{\n"use strict";\n{own}\n}})();\n'
    assert "</script" not in script.lower() and "</style" not in style.lower()
    parts = {
        "policy": f"default-src 'none'; script-src {_fingerprint(script)}; style-src {_fingerprint(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        "title": html.escape(safe(payload["title"])),
        "style": style,
        "data": embedded_json(payload),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _text(assets / "page.html"))


def embedded_json(values: Any) -> str:
    """Write JSON for a script element in ASCII.

    It has no ``<``, so no tag or comment can begin in it, and no control characters for an editor or a terminal.
    """
    try:
        text = _json(values)
    except ValueError:  # a configuration can hold infinite numbers and NaN, JSON cannot: they become null
        text = _json(json.loads(json.dumps(values), parse_constant=lambda _: None))
    for letter in "<>&\x7f":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _json(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _fingerprint(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")
