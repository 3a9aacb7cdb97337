"""Reads of unknown values: expression, line, assumed value, branch."""

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Iterator
from types import CodeType, FrameType

from memlab.meters.where import user_line
from memlab.simulator.rank.allocation_sites import path_as_imported, path_of
from memlab.simulator.trace.trace_format import DECIDED

_NOT_THE_READER = (path_of("torch/"), path_of("memlab/"), contextlib.__file__, functools.__file__, "<")
"""Path prefixes of code that only passes a read on."""

MOST_LETTERS = 90
"""Length of an expression, in letters, that is written out."""


class Assumptions:
    """Counts sentences in ``assumed``: sentence -> times.

    ``of_sizes``: function -> the last of its sentences about a number that may have become a size.
    """

    def __init__(self, assumed: dict[str, int]):
        self._assumed = assumed
        self.of_sizes: dict[CodeType, str] = {}
        self._expressions: dict[tuple[CodeType, int], tuple[str, bool]] = {}

    def note(self, taken: str, may_be_a_size: bool = False) -> None:
        """Note that the program now reads an unknown value. ``taken``: "as 1.0", "from ..."."""
        frame = _reader()
        if frame is None:
            return
        key = frame.f_code, frame.f_lasti
        if key not in self._expressions:
            self._expressions[key] = _expression(frame)
        expression, decides = self._expressions[key]
        place, user = f"{path_as_imported(frame.f_code.co_filename)}:{frame.f_lineno}", user_line(frame)
        caller = f" (called at {user})" if user and user.rpartition("/")[2] != place.rpartition("/")[2] else ""
        sentence = f"{expression} at {place}{caller} was taken {taken}"
        if may_be_a_size:
            self.of_sizes[frame.f_code] = sentence
        self.add(sentence + (DECIDED if decides else ""))

    def add(self, sentence: str) -> None:
        """Count a sentence about what was taken for granted."""
        self._assumed[sentence] = self._assumed.get(sentence, 0) + 1


def _reader() -> FrameType | None:
    """The innermost frame that does not only pass the read on; else that of ``python -c``, which has no file."""
    frame: FrameType | None = sys._getframe(2)
    of_words = None
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_READER):
        if of_words is None and frame.f_code.co_filename == "<string>":
            of_words = frame
        frame = frame.f_back
    return frame or of_words


Place = tuple[int, int, int, int]
"""Line and column where an expression begins, and where it ends."""


def _expression(frame: FrameType) -> tuple[str, bool]:
    """The expression that a frame evaluates, and whether a branch depends on it."""
    code, file = frame.f_code, frame.f_code.co_filename
    if sys.version_info < (3, 11):  # the caller's Python, which knows lines alone
        return _shortened(linecache.getline(file, frame.f_lineno)) or _name(code), False
    line, end_line, column, end_column = list(code.co_positions())[frame.f_lasti // 2]
    if line is None or end_line is None or column is None or end_column is None:
        return _shortened(linecache.getline(file, frame.f_lineno)) or _name(code), False
    place = line, column, end_line, end_column
    if negated := _negated(file, place):
        place = _place(negated)
    return _shortened(_text(file, place)) or _name(code), negated is not None or _decides(file, place)


def _name(code: CodeType) -> str:
    """Name what a function without source reads."""
    return "a value" if code.co_name == "<module>" else code.co_name


def _text(file: str, place: Place) -> str:
    line, column, end_line, end_column = place
    lines = [linecache.getline(file, number).encode() for number in range(line, end_line + 1)]
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return " ".join(b" ".join(lines).decode(errors="replace").split())


def _shortened(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."


def _negated(file: str, place: Place) -> ast.expr | None:
    """What ``not`` negates in the condition of the statement at ``place``. Python gives such a read the place of the
    whole statement."""
    for _, statement, _ in _conditions(file):
        if isinstance(statement, ast.If | ast.While) and _place(statement) == place:
            test = statement.test
            return test.operand if isinstance(test, ast.UnaryOp) else test
    return None


def _decides(file: str, place: Place) -> bool:
    """Whether the expression at ``place`` is a part of a condition, or is named and the name is in a condition of the
    same function. Reads the source alone: what travels further is not followed."""
    for function, statement, tests in _conditions(file):
        if any(_is_within(place, _place(test)) for test in tests):
            return True
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) and _is_within(place, _place(statement)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
            return bool(names & _names_in_conditions(function))
    return False


@functools.cache
def _conditions(file: str) -> list[tuple[ast.AST, ast.stmt, list[ast.expr]]]:
    """List the statements of a file: the function, the statement, and the conditions in it."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    return list(_statements(tree, tree))


def _statements(function: ast.AST, node: ast.AST) -> Iterator[tuple[ast.AST, ast.stmt, list[ast.expr]]]:
    for child in ast.iter_child_nodes(node):
        owner = child if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(child, ast.stmt):
            yield owner, child, _tests(child)
        yield from _statements(owner, child)


def _tests(statement: ast.stmt) -> list[ast.expr]:
    """The conditions of a statement, without those of the statements in it."""
    found = [statement.test] if isinstance(statement, ast.If | ast.While | ast.Assert) else []
    for node in _expressions_of(statement):
        if isinstance(node, ast.IfExp):
            found.append(node.test)
        elif isinstance(node, ast.comprehension):
            found += node.ifs
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            found += node.args
    return found


def _expressions_of(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield child
            yield from _expressions_of(child)


@functools.cache
def _names_in_conditions(function: ast.AST) -> frozenset[str]:
    tests = [test for node in ast.walk(function) if isinstance(node, ast.stmt) for test in _tests(node)]
    return frozenset(node.id for test in tests for node in ast.walk(test) if isinstance(node, ast.Name))


def _place(node: ast.expr | ast.stmt) -> Place:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


def _is_within(inner: Place, outer: Place) -> bool:
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]
