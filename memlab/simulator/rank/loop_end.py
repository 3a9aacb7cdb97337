"""The end of a loop that counts its batches: how many more of them a script uses before it leaves the loop.

``if step >= args.max_steps: break`` ends a training before its epoch, or one whose loader never ends, and so does a
loop over a range that asks for a batch in each pass. memlab evaluates the comparison that ends the loop twice, one
optimizer step apart: the difference shows how far the counter gets in a step, whether it counts batches, steps or
samples. No code of the script runs.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, NamedTuple

from memlab.meters.source_lines import passes_of, value_of
from memlab.meters.variables import local_variables, loops_of, user_frames

_RISES, _FALLS, _LEAVE = ast.GtE | ast.Gt | ast.Eq, ast.LtE | ast.Lt, ast.Break | ast.Return


class _Loop(NamedTuple):
    """A running loop. ``place``: its file and line. ``asks_inside``: it asks for the batch in its body. ``gives_on``:
    it is a generator's."""

    place: tuple[str, int]
    node: Any
    variables: Mapping[str, Any]
    asks_inside: bool
    gives_on: bool


class LoopEnd:
    """The end of the loops that read a loader, which begins to give its batches now."""

    def __init__(self) -> None:
        self._began_in = {loop.place for loop in _loops()}
        self._before: dict[tuple, tuple[float, int]] = {}

    def look(self) -> bool:
        """Note how far the ends are; return whether there are any."""
        self._before = self._ends()
        return bool(self._before)

    def batches_left(self, since: int) -> int | None:
        """Return how many more batches the script uses; ``None``: it does not say. ``since``: batches since the
        look."""
        left = []
        for place, (now, more) in self._ends().items():
            passed = now - self._before.get(place, (now, 0))[0]
            if now <= 0 < passed:
                left.append(ceil(-now * since / passed) + more)
        return min(left, default=None)

    def _ends(self) -> dict[tuple, tuple[float, int]]:
        """Return how far each end is, as a number that rises to 0, and the batches to add to those until then."""
        found: dict[tuple, tuple[float, int]] = {}
        loops = list(_loops())
        for number, loop in enumerate(loops):
            # Another loop around this one goes on with the same batches, unless this one began to read them.
            if number + 1 < len(loops) and loop.place not in self._began_in:
                continue
            if passes := passes_of([loop.node], loop.variables):
                found[loop.place] = passes[0] - passes[1], int(loop.asks_inside)
            for statement in loop.node.body:
                if isinstance(statement, ast.If) and any(isinstance(each, _LEAVE) for each in statement.body):
                    for compared in _deciding(statement.test, loop.variables):
                        distance = _distance(compared, loop.variables)
                        if distance is not None:
                            more = _more(loop, statement, compared)
                            found[(*loop.place, compared.lineno, compared.col_offset)] = distance, more
            if loop.place in self._began_in and not (loop.asks_inside or loop.gives_on):
                break  # it reads the loader from the first batch to the last: those around it count epochs
        return found


def _loops() -> Iterator[_Loop]:
    """Yield the running loops of the script, the innermost first."""
    for frame in user_frames():
        variables = {**frame.f_globals, **local_variables(frame)}
        for node in reversed(loops_of(frame)):
            place, in_body = (frame.f_code.co_filename, node.lineno), frame.f_lineno >= node.body[0].lineno
            yield _Loop(place, node, variables, in_body, bool(frame.f_code.co_flags & inspect.CO_GENERATOR))


def _more(loop: _Loop, end: ast.If, compared: ast.Compare) -> int:
    """Return the batches to add to those that the counter shows.

    The variable of a ``for`` rises before the loop uses its batch. A loop that ends in its first statement does not use
    the last batch. A loop that asks for a batch in its body still gets the one that it asks for now.
    """
    targets = {each.id for each in ast.walk(getattr(loop.node, "target", end.test)) if isinstance(each, ast.Name)}
    named = {each.id for each in ast.walk(compared) if isinstance(each, ast.Name)}
    if not isinstance(loop.node, ast.For) or not targets & named:
        return 0
    return loop.asks_inside - (end is loop.node.body[0])


def _deciding(test: Any, variables: Mapping[str, Any]) -> list[ast.Compare]:
    """Return the comparisons each of which alone can still make a condition true."""
    if not isinstance(test, ast.BoolOp):
        return [test] if isinstance(test, ast.Compare) else []
    parts = test.values
    if isinstance(test.op, ast.And):
        parts = [part for part in parts if not _holds(part, variables)]
        if len(parts) > 1:
            return []
    return [each for part in parts for each in _deciding(part, variables)]


def _holds(test: Any, variables: Mapping[str, Any]) -> bool:
    if not isinstance(test, ast.Compare):
        value = value_of(test, variables)
        return isinstance(value, int | float) and bool(value)
    if isinstance(test.ops[0], ast.IsNot):
        return value_of(test.left, variables) is not value_of(test.comparators[0], variables)
    distance = _distance(test, variables)
    return distance is not None and (distance == 0 or (distance > 0 and not isinstance(test.ops[0], ast.Eq)))


def _distance(test: ast.Compare, variables: Mapping[str, Any]) -> float | None:
    """Return a number that is not below 0 where a comparison of numbers is true; ``None``: they are not known."""
    left, right = (value_of(each, variables) for each in (test.left, test.comparators[0]))
    operator, *others = test.ops
    if others or not {type(left), type(right)} <= {int, float} or not isinstance(operator, _RISES | _FALLS):
        return None
    above = left - right if isinstance(operator, _RISES) else right - left
    return above - isinstance(operator, ast.Gt | ast.Lt)
