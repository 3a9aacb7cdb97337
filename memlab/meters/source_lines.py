"""Lines of the script's source: those that keep something in a variable, and the loops that run until the end."""

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_ADDS = frozenset({"append", "appendleft", "extend", "add", "insert", "setdefault", "update"})
_EMPTIES = frozenset({"clear", "pop", "popleft", "popitem", "remove"})


class Uses(NamedTuple):
    """The first line that puts something into a variable, or ``None``; whether another one takes something out."""

    keeps: int | None
    is_emptied: bool


def uses_of(source: str, name: str, function: int | None = None) -> Uses:
    """Find the lines of ``source`` that change the container ``name``, a variable or an attribute.

    ``function``: the first line of the one whose variable it is; ``None``: of the module, or an attribute.
    """
    keeps, is_emptied = [], False
    for node, in_loop in _nodes(_function(_parsed(source), function)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is(node.func.value, name):
            if node.func.attr in _ADDS:
                keeps.append(node.lineno)
            is_emptied = is_emptied or node.func.attr in _EMPTIES
        elif isinstance(node, ast.Delete):
            is_emptied = is_emptied or any(_is(target, name) for target in node.targets)
        elif isinstance(node, ast.AugAssign) and _is(node.target, name):
            keeps.append(node.lineno)
        elif isinstance(node, ast.Assign) and any(_is(target, name) for target in node.targets):
            mentioned = any(_is(each, name) for each in ast.walk(node.value))
            if mentioned or any(isinstance(target, ast.Subscript) for target in node.targets):
                keeps.append(node.lineno)
            else:
                is_emptied = is_emptied or in_loop
    return Uses(min(keeps, default=None), is_emptied)


def passes_of(loops: Sequence[Any], variables: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return how many passes of nested loops have begun, and how many there are in all; without a loop there is one.

    ``variables``: those of the function. ``None``: a loop is no ``for`` over a range whose ends and variable are known.
    """
    begun, total = 0, 1
    for loop in loops:
        steps = _range(loop.iter, variables) if isinstance(loop, ast.For) else None
        now = variables.get(loop.target.id) if steps and isinstance(loop.target, ast.Name) else None
        if steps is None or type(now) is not int or now not in steps:
            return None
        begun, total = begun * len(steps) + steps.index(now), total * len(steps)
    return begun + 1, total


def loops_around(source: str, line: int) -> list[Any]:
    """Return the loops around a line, the outermost first, of the innermost function that the line is in."""
    around = [node for node, _ in _nodes(_parsed(source)) if _has(node, line)]  # outer nodes come before inner ones
    function = max((index for index, node in enumerate(around) if isinstance(node, ast.FunctionDef)), default=-1)
    return [node for node in around[function + 1 :] if _is_loop(node)]


def value_of(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """Return the value of a number, of a variable, or of an attribute of a plain object such as ``args.steps``."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(value_of(node.value, variables), "__dict__", {}).get(node.attr)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        left, right = value_of(node.left, variables), value_of(node.right, variables)
        if type(left) is type(right) is int:
            return left + right if isinstance(node.op, ast.Add) else left - right
    return None


@functools.lru_cache(maxsize=4)
def _parsed(source: str) -> ast.AST:
    return ast.parse(source)


def _nodes(node: ast.AST, in_loop: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield all nodes below one, each with whether a loop of its function is around it."""
    for child in ast.iter_child_nodes(node):
        yield child, in_loop
        yield from _nodes(child, _is_loop(child) or (in_loop and not isinstance(child, ast.FunctionDef)))


def _function(tree: ast.AST, first_line: int | None) -> ast.AST:
    """Return the function that begins at a line, with its decorators; else the whole tree."""
    functions = (node for node, _ in _nodes(tree) if isinstance(node, ast.FunctionDef))
    begins = ((min([node.lineno, *(each.lineno for each in node.decorator_list)]), node) for node in functions)
    return next((node for begin, node in begins if begin == first_line), tree)


def _is_loop(node: ast.AST) -> bool:
    return isinstance(node, ast.For | ast.While | ast.AsyncFor)


def _has(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)


def _range(node: ast.AST, variables: Mapping[str, Any]) -> range | None:
    """Return the range that a loop goes over, also inside a call such as ``tqdm(range(10))``; no code is run."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    if not isinstance(node.func, ast.Name) or node.func.id not in ("range", "trange"):
        return _range(node.args[0], variables)
    ends = [value_of(each, variables) for each in node.args]
    return range(*ends) if all(type(each) is int for each in ends) and len(ends) <= 3 else None


def _is(node: ast.AST, name: str) -> bool:
    """Whether a node is the variable or attribute ``name``, or a place in it: ``self.kept["loss"]`` is ``kept``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
