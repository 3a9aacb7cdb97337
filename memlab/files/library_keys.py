"""Keys of transformers' TrainingArguments and of the DeepSpeed JSON, with their types.

They are read from the source of the installed packages, since importing these takes seconds. DeepSpeed's keys without
a pydantic model are in deepspeed_keys.json: each has a type, keys of its own, or the ``FILE:CLASS`` of its model.
"""

import ast
import importlib.util
import json
from collections.abc import Callable
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import GenericAlias
from typing import Any

from memlab.core.errors import ConfigError

LISTED = Path(__file__).parent / "deepspeed_keys.json"

Keys = dict[str, Any]
"""Key -> type annotation (``Any`` where the source names no simple type), or the keys inside."""

SIMPLE = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict, "Dict": dict, "List": list}


@cache
def training_arguments() -> Keys:
    """Return the fields of ``transformers.TrainingArguments``. Raises :class:`ConfigError` without the package."""
    return _fields(_folder("transformers") / "training_args.py", "TrainingArguments", lambda name: None)


@cache
def deepspeed_json() -> Keys:
    """Return the keys of the DeepSpeed JSON. Raises :class:`ConfigError` without the package."""
    return _listed(json.loads(LISTED.read_text(encoding="utf-8"))["keys"])


def _listed(values: dict[str, Any]) -> Keys:
    return {key: _listed(value) if isinstance(value, dict) else _written(value) for key, value in values.items()}


def _written(text: str) -> Any:
    file, colon, name = text.partition(":")
    if colon:
        return _model(_folder("deepspeed") / file, name)
    return _type(ast.parse(text, mode="eval").body, lambda name: None)


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"{package} is not installed, so its keys cannot be checked: pip install {package}")
    return Path(spec.submodule_search_locations[0])


@cache
def _parsed(file: Path) -> list[ast.stmt]:
    return ast.parse(file.read_text(encoding="utf-8")).body


def _model(file: Path, name: str) -> Keys | None:
    """Return the fields of a class that the module ``file`` defines, or imports from DeepSpeed; ``None`` for others."""
    for statement in _parsed(file):
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return _fields(file, name, lambda other: _model(file, other)) or None
        if isinstance(statement, ast.ImportFrom) and name in {alias.name for alias in statement.names}:
            parts = (statement.module or "").split(".")
            if statement.level:
                return _model(file.parents[statement.level - 1].joinpath(*parts).with_suffix(".py"), name)
            if parts[0] == "deepspeed":
                return _model(_folder("deepspeed").joinpath(*parts[1:]).with_suffix(".py"), name)
    return None


def _fields(file: Path, name: str, model: Callable[[str], Keys | None]) -> Keys:
    """Return the annotated fields of a class and of its bases in the same module, by their aliases.

    ``model`` returns the keys of a class that an annotation names.
    """
    classes = {each.name: each for each in _parsed(file) if isinstance(each, ast.ClassDef)}
    bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in classes]
    keys = {key: kind for base in bases for key, kind in _fields(file, base, model).items()}
    for each in classes[name].body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            keys[_alias(each.value) or each.target.id] = _type(each.annotation, model)
    return keys


def _alias(default: ast.expr | None) -> str | None:
    """Return the name under which pydantic's ``Field`` takes the value, if that is not the attribute's."""
    given = default.keywords if isinstance(default, ast.Call) else []
    return next((ast.literal_eval(keyword.value) for keyword in given if keyword.arg == "alias"), None)


def _type(node: ast.expr, model: Callable[[str], Keys | None]) -> Any:
    """Return the annotation of simple types that a node is, or the keys of a model; ``Any`` for all others."""
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Name(id=name):
            return SIMPLE.get(name) or model(name) or Any
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return _any_of([_type(inner, model), None])
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=inner)):
            return _any_of([_type(each, model) for each in inner])
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _any_of([_type(left, model), _type(right, model)])
        case ast.Subscript(value=ast.Name(id="list" | "List"), slice=inner):
            kind: Any = _type(inner, model)
            return list if isinstance(kind, dict) else GenericAlias(list, kind)
        case ast.Subscript(value=ast.Name(id="dict" | "Dict")):
            return dict
        case _:
            return Any


def _any_of(kinds: list[Any]) -> Any:
    """Unite types. A class that is not simple is left out beside simple types: an Enum has its words as text too."""
    if keys := next((kind for kind in kinds if isinstance(kind, dict)), None):
        return keys
    simple = [kind for kind in kinds if kind is not Any]
    return reduce(or_, simple) if set(simple) - {None} else Any
