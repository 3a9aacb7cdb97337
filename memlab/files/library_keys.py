"""Keys of transformers' TrainingArguments and of the DeepSpeed JSON, with their types, and of model configurations.

They are read from the source of the installed packages, since importing these takes seconds. DeepSpeed's keys without
a pydantic model are in deepspeed_keys.json: each has a type, keys of its own, or the ``FILE:CLASS`` of its model.
"""

import ast
import importlib.util
import json
import re
from collections.abc import Callable
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, get_origin

from memlab.core.errors import ConfigError
from memlab.core.schema import Limits

LISTED = Path(__file__).parent / "deepspeed_keys.json"

Keys = dict[str, Any]
"""Key -> type annotation (``Any`` where the source names neither a simple type nor an Enum of words), or the keys
inside."""

SIMPLE = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict, "Dict": dict, "List": list}


@cache
def training_arguments() -> Keys:
    """Return the fields of ``transformers.TrainingArguments``. Raises :class:`ConfigError` without the package."""
    file = _folder("transformers") / "training_args.py"
    return _fields(file, "TrainingArguments", lambda name: _named(file, name))


@cache
def deepspeed_json() -> Keys:
    """Return the keys of the DeepSpeed JSON. Raises :class:`ConfigError` without the package."""
    return _listed(json.loads(LISTED.read_text(encoding="utf-8"))["keys"])


class Family(NamedTuple):
    """transformers' configuration of a model family. ``words``: all of its source, of which any may be a key."""

    name: str
    keys: frozenset[str]
    words: frozenset[str]


@cache
def family(model_type: str) -> Family | None:
    """Return the configuration of a model family; ``None`` for one that transformers lacks."""
    folder = _folder("transformers")
    for file in folder.glob(f"models/{re.split('[-_]', model_type)[0]}*/configuration_*.py"):
        for each in _parsed(file):
            if isinstance(each, ast.ClassDef) and f"model_type = '{model_type}'" in map(ast.unparse, each.body):
                shared = (folder / "configuration_utils.py", folder / "modeling_rope_utils.py")
                text = "".join(source.read_text(encoding="utf-8") for source in (file, *shared))
                keys = _fields(file, each.name, lambda name: None)
                return Family(each.name, frozenset(keys), frozenset(re.findall(r"\w+", text)))
    return None


def _listed(values: dict[str, Any]) -> Keys:
    return {key: _listed(value) if isinstance(value, dict) else _written(value) for key, value in values.items()}


def _written(text: str) -> Any:
    file, colon, name = text.partition(":")
    if colon:
        return _named(_folder("deepspeed") / file, name)
    return _type(ast.parse(text, mode="eval").body, lambda name: None)


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"{package} is not installed, so its keys cannot be checked: pip install {package}")
    return Path(spec.submodule_search_locations[0])


@cache
def _parsed(file: Path) -> list[ast.stmt]:
    return ast.parse(file.read_text(encoding="utf-8")).body


def _named(file: Path, name: str) -> Any:
    """Return the words of an Enum, or the fields of another class, that the module ``file`` defines or imports from its
    package; ``None`` for others."""
    for statement in _parsed(file):
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return _words(statement) or _fields(file, name, lambda other: _named(file, other)) or None
        if isinstance(statement, ast.ImportFrom) and name in {alias.name for alias in statement.names}:
            parts = (statement.module or "").split(".")
            if statement.level:
                return _named(file.parents[statement.level - 1].joinpath(*parts).with_suffix(".py"), name)
            if parts[0] == "deepspeed":
                return _named(_folder("deepspeed").joinpath(*parts[1:]).with_suffix(".py"), name)
    return None


def _words(class_: ast.ClassDef) -> Any:
    """Return the type of an Enum's values if all are text; ``None`` for other classes."""
    if not any(isinstance(base, ast.Name) and base.id.endswith("Enum") for base in class_.bases):
        return None
    values = [
        each.value.value
        for each in class_.body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
    ]
    return Annotated[str, Limits(choices=tuple(values))] if all(isinstance(value, str) for value in values) else None


def _fields(file: Path, name: str, model: Callable[[str], Any]) -> Keys:
    """Return the annotated fields of a class and of its bases in the same module, by their aliases.

    ``model`` returns what :func:`_named` does of a class that an annotation names.
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


def _type(node: ast.expr, model: Callable[[str], Any]) -> Any:
    """Return what a type in a library's source allows: a simple type, its words, or the keys of a model. ``Any`` stands
    for every other type."""
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
    """Unite types. A class that is neither simple nor an Enum is left out beside simple types. Text beside an Enum is
    one of its words."""
    if keys := next((kind for kind in kinds if isinstance(kind, dict)), None):
        return keys
    has_words = any(get_origin(kind) is Annotated for kind in kinds)
    simple = [kind for kind in kinds if kind is not Any and not (has_words and kind is str)]
    return reduce(or_, simple) if set(simple) - {None} else Any
