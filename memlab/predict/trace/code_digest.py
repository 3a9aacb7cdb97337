"""Digest of the predictor's code: a cached result is valid for the code that made it only."""

import ast
import hashlib
from functools import cache
from pathlib import Path

from memlab.files.cache_folder import cache_folder
from memlab.files.disk import write_whole


@cache
def code_digest(folder: str = "") -> str:
    """Return a digest of the code of ``memlab.predict``, or of its subfolder ``folder``, with the sizes and ratios that
    are shipped beside it as JSON. Docstrings and comments are left out, because no result depends on them.

    Parsing takes 0.1 s, so the digest is kept in the cache under the digest of the whole files.
    """
    files = sorted((Path(__file__).parents[1] / folder).rglob("*.*"))
    modules, tables = ([file.read_bytes() for file in files if file.suffix == suffix] for suffix in (".py", ".json"))
    kept = cache_folder("code") / _digest([*modules, *tables])
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, _digest([*map(code_of, modules), *tables]).encode())
    return kept.read_text()


def code_of(source: bytes) -> bytes:
    """Return the syntax tree of a module without its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return ast.dump(tree).encode()


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a text alone: a docstring, of an attribute too."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _digest(parts: list[bytes]) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
