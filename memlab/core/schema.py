"""Checks of plain values (as JSON and YAML hold them) against type annotations.

A check is built once from the fields of a dataclass or typed dictionary, on first use. Supported types: ``Any``,
``None``, bool, int, float, str, lists and tuples, dictionaries with text keys, dataclasses, typed dictionaries, named
tuples (a list of their fields), and unions of these types. :class:`Limits` narrows a type:
``Annotated[list[int], Limits(length=2)]``, or as metadata of a field.
"""

import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import repeat
from reprlib import Repr
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from memlab.core.errors import nearest

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 60


def shown(value: Any) -> str:
    """Format a value for an error message: short, however large or deeply nested the value is."""
    return "null" if value is None else _REPR.repr(value)


MISSING = "???"
"""OmegaConf's mark for a mandatory value."""

LARGEST_WHOLE = 2**63 - 1
"""The largest whole number that torch holds."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from ``minimum`` to ``maximum``. ``above`` excludes the minimum, ``below`` excludes the maximum."""

    minimum: float = -math.inf
    maximum: float = math.inf
    above: bool = False
    below: bool = False

    def refusal(self, value: float) -> str | None:
        """Say what ``value`` must be, for instance ``at least 1``; ``None`` if it is in the range."""
        if isinstance(value, float) and not math.isfinite(value):
            return "a finite number"
        if value < self.minimum or (self.above and value == self.minimum):
            return f"{'more than' if self.above else 'at least'} {self.minimum}"
        if value > self.maximum or (self.below and value == self.maximum):
            return f"{'less than' if self.below else 'at most'} {self.maximum}"
        return None


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a value besides its type. ``None``, if the type allows it, satisfies all limits."""

    choices: tuple[Any, ...] | None = None
    range: Range | None = None  # of a number; of a list, of each number in it
    length: int | None = None  # of a list
    printable: bool = False  # one line, without control characters


@dataclasses.dataclass(frozen=True)
class Others:
    """Type of the values of all other keys, for a typed dictionary. Without it, they may be anything."""

    annotation: Any


@dataclasses.dataclass(frozen=True)
class Together:
    """Keys of a typed dictionary that must all be there if the first of them is."""

    keys: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PlainOf:
    """Other type whose plain form (as made by ``dataclasses.asdict``) the values must have."""

    annotation: Any


class SchemaError(ValueError):
    """A value that its annotation does not allow."""

    def __init__(self, problem: str):
        super().__init__(problem)
        self.problem = problem
        self.path = ""

    def within(self, key: str | int) -> "SchemaError":
        """Add to the path the ``key`` under which a list or dictionary holds the value. Returns the same error."""
        own = f"[{key}]" if isinstance(key, int) else key
        self.path = own if not self.path else f"{own}{self.path}" if self.path[0] == "[" else f"{own}.{self.path}"
        return self

    def __str__(self) -> str:
        return f"{shown(self.path)} {self.problem}" if self.path else self.problem


Inside = Callable[[Any], None]
"""Function that checks the parts and the limits of a value of the right type. Raises :class:`SchemaError`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """Check of a type. ``kinds``: the Python types that a value may have; ``name``: their name in error messages;
    ``insides``: what a value of the right type must pass; ``bounds``: least and greatest value of a whole number, where
    these are its only limits."""

    kinds: frozenset[type]
    name: str
    insides: tuple[Inside, ...] = ()
    bounds: tuple[float, float] | None = None

    def __call__(self, value: Any) -> None:
        """Raise :class:`SchemaError` for a value that is not allowed."""
        if type(value) not in self.kinds:  # not isinstance, which takes a bool for an int
            raise SchemaError(f"must be {self.name}, not {shown(value)}.")
        for inside in self.insides:
            inside(value)


_PLAIN = {
    bool: Check(frozenset({bool}), "true or false"),
    int: Check(frozenset({int}), "a whole number"),
    float: Check(frozenset({float, int}), "a number"),
    str: Check(frozenset({str}), "text"),
    types.NoneType: Check(frozenset({types.NoneType}), "null"),
    Any: Check(frozenset({bool, int, float, str, types.NoneType, list, dict}), "any value"),
    dict: Check(frozenset({dict}), "keys with values"),
    list: Check(frozenset({list}), "a list"),
}
_LISTS = {float: "a list of numbers", str: "a list of names"}


def check_field(spec: dataclasses.Field) -> Check:
    """Build the check of a dataclass field from its type and the limits in its metadata."""
    annotation: Any = Annotated[spec.type, Limits(**spec.metadata)] if spec.metadata else spec.type
    return check_of(annotation)


@cache
def check_of(annotation: Any) -> Check:
    """Build the check of a type annotation."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _narrowed(*arguments)
    if origin in (Union, types.UnionType):
        return _union([check_of(argument) for argument in arguments])
    if hasattr(annotation, "_fields"):
        return _fields_in_order(annotation)
    if origin in (list, tuple):
        return Check(frozenset({list}), _LISTS.get(arguments[0], "a list"), (_of_items(check_of(arguments[0])),))
    if origin is dict:
        return _keys({}, (), check_of(arguments[1]))
    if dataclasses.is_dataclass(annotation):
        known = {spec.name: check_field(spec) for spec in dataclasses.fields(annotation)}
        return _keys(known, required(annotation), _PLAIN[Any])
    if is_typeddict(annotation):
        return _typed_dict(annotation, Any)
    raise TypeError(f"{annotation!r}: a schema cannot hold this type")


def required(schema: Any) -> tuple[str, ...]:
    """List the fields of a dataclass that have no default."""
    return tuple(
        spec.name
        for spec in dataclasses.fields(schema)
        if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
    )


def _narrowed(annotation: Any, *metadata: Any) -> Check:
    check = check_of(annotation)
    for each in metadata:
        if isinstance(each, PlainOf):
            check = check_of(each.annotation)
        elif isinstance(each, Others):
            check = _typed_dict(annotation, each.annotation)
        else:
            is_limit = isinstance(each, Limits)
            more = _within(each) if is_limit else _has_together(each)
            bounds = _bounds(each) if is_limit and check is _PLAIN[int] else None
            check = replace(check, insides=(*check.insides, more), bounds=bounds)
    return check


def _typed_dict(schema: Any, others: Any) -> Check:
    known = {name: check_of(hint) for name, hint in get_type_hints(schema, include_extras=True).items()}
    needed = tuple(name for name in known if name in schema.__required_keys__)
    return _keys(known, needed, check_of(others))


def _union(checks: list[Check]) -> Check:
    insides = {kind: check.insides for check in checks for kind in check.kinds}

    def inside(value: Any) -> None:
        for look in insides[type(value)]:
            look(value)

    name = ", or ".join(check.name for check in checks)
    return Check(frozenset(insides), name, (inside,) if any(insides.values()) else ())


def _of_items(item: Check) -> Inside:
    def are_allowed(values: list[Any]) -> bool:
        """Look at all values together: most lists hold many plain numbers. False: each value has to be looked at."""
        if not item.kinds.issuperset(map(type, values)):
            return False
        if item.bounds and values:
            return item.bounds[0] <= min(values) and max(values) <= item.bounds[1]
        return not item.insides

    def inside(values: list[Any]) -> None:
        if not are_allowed(values):
            _look_at_each(repeat(item), values)

    return inside


def _look_at_each(checks: Iterable[Check], values: list[Any]) -> None:
    for index, (check, value) in enumerate(zip(checks, values, strict=False)):
        try:
            if type(value) not in check.kinds:  # like Check.__call__, but without a function call for each value
                check(value)
            for inside in check.insides:
                inside(value)
        except SchemaError as error:
            raise error.within(index) from None


def _fields_in_order(schema: Any) -> Check:
    """Build the check of a list with the fields of a named tuple; those with defaults may be missing."""
    checks = [check_of(hint) for hint in get_type_hints(schema, include_extras=True).values()]
    least = len(checks) - len(schema._field_defaults)

    def inside(values: list[Any]) -> None:
        if not least <= len(values) <= len(checks):
            raise SchemaError(f"must be a list of {len(checks)} values, not {shown(values)}.")
        _look_at_each(checks, values)

    return replace(_PLAIN[list], insides=(inside,))


def _keys(known: Mapping[str, Check], needed: Sequence[str], others: Check) -> Check:
    """Build the check of a dictionary. ``needed``: keys that must be there; ``others``: of all keys but the known."""

    def inside(values: dict[str, Any]) -> None:
        for name in needed:
            if name not in values:
                raise SchemaError("is missing.").within(name)
        for key, value in values.items():
            check = known.get(key, others)
            try:
                if type(value) in check.kinds:  # like Check.__call__, but without a function call for each value
                    for look in check.insides:
                        look(value)
                elif check is not _PLAIN[Any]:
                    check(value)
            except SchemaError as error:
                raise error.within(key) from None

    return replace(_PLAIN[dict], insides=(inside,))


def _has_together(together: Together) -> Inside:
    def inside(values: dict[str, Any]) -> None:
        first = together.keys[0]
        for name in together.keys if first in values else ():
            if name not in values:
                raise SchemaError(f"is missing next to '{first}'.").within(name)

    return inside


def _bounds(limits: Limits) -> tuple[float, float] | None:
    """Return the least and the greatest number that limits allow; ``None`` if the range is open at an end, or if there
    are limits beside the range."""
    allowed = limits.range or Range()
    is_closed = not (allowed.above or allowed.below) and all(map(math.isfinite, (allowed.minimum, allowed.maximum)))
    return (allowed.minimum, allowed.maximum) if is_closed and limits == Limits(range=limits.range) else None


def _within(limits: Limits) -> Inside:
    """Build one check of all given limits: choices, length, range, printable."""
    choices, length, allowed, bounds = limits.choices, limits.length, limits.range, _bounds(limits)

    def inside(value: Any) -> None:
        if value is None:
            return
        if choices is not None and value not in choices:
            raise SchemaError(f"cannot be {shown(value)}. {nearest(str(value), map(str, choices))}")
        if length is not None and len(value) != length:
            raise SchemaError(f"must be a list of {length} numbers, not {shown(value)}.")
        for number in value if isinstance(value, list) else (value,):
            if allowed and (refusal := allowed.refusal(number)):
                raise SchemaError(f"must be {refusal}, not {shown(number)}.")
        if limits.printable and not value.isprintable():
            raise SchemaError(f"must be one line of printable text, not {shown(value)}.")

    if bounds is None:
        return inside
    low, high = bounds

    def inside_range(value: Any) -> None:  # fast path for the millions of numbers of a trace
        if type(value) not in (int, float) or not low <= value <= high:
            inside(value)

    return inside_range
