"""Plain form of named tuples of a few kinds: a list for each field, so that millions are read and checked fast."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from string import ascii_lowercase
from types import MappingProxyType
from typing import Any, TypedDict, cast, get_args, get_type_hints

from memlab.core.grouping import grouped
from memlab.core.value_types import Count

tuple_of: Any = tuple.__new__
"""``tuple_of(kind, fields)`` is ``kind(*fields)`` without a call of Python code in between."""

_list, _typed_dict = cast(Any, list), cast(Any, TypedDict)  # mypy wants types that are written out


class Columns:
    """Plain form of lists of named tuples. ``union``: of their kinds; a new one is the last.

    The form is a dictionary. ``kinds`` has a letter for each value: the place of its kind in ``union``. Each kind has a
    list for each of its fields, with the values of this kind in their order; a single value if they are all equal.
    ``schema``: its type. ``made``: field -> function that makes its value of the plain one. Such a field has a list of
    its different values, and their numbers in a list of its own.
    """

    def __init__(self, union: Any, made: Mapping[str, Callable[[Any], Any]] = MappingProxyType({})):
        self._kinds: dict[type[Any], str] = dict(zip(get_args(union), ascii_lowercase, strict=False))
        self._made = made
        forms = {kind.__name__: self._form(kind) for kind in self._kinds}
        self.schema: Any = _typed_dict("Columns", {"kinds": str, **forms})

    def _form(self, kind: type[Any]) -> Any:
        hints = get_type_hints(kind, include_extras=True)
        numbers = {_numbers_of(name): Count for name in hints if name in self._made}
        lists = {name: _list[hint] for name, hint in (hints | numbers).items()}
        return _typed_dict(kind.__name__, lists, total=False)

    def to_json(self, values: Sequence[Any]) -> dict[str, Any]:
        columns: dict[str, Any] = {"kinds": "".join(map(self._kinds.__getitem__, map(type, values)))}
        by_kind = grouped(values, type)
        for kind in self._kinds:
            own = by_kind.get(kind, ())
            fields = {name: list(map(itemgetter(number), own)) for number, name in enumerate(kind._fields)}
            for name in self._made.keys() & fields.keys():
                numbers: dict[Any, int] = {}
                fields[_numbers_of(name)] = [numbers.setdefault(value, len(numbers)) for value in fields[name]]
                fields[name] = list(numbers)
            columns[kind.__name__] = {
                name: each[:1] if each.count(each[0]) == len(each) else each for name, each in fields.items() if each
            }
        return columns

    def from_json(self, columns: Mapping[str, Any]) -> list[Any]:
        """Return the values. Raises ``ValueError`` if a list of a field is too long or too short."""
        found: dict[str, Iterator[Any]] = {}
        for kind, letter in self._kinds.items():
            count, own, lists = columns["kinds"].count(letter), columns[kind.__name__], []
            for name in kind._fields if count else ():
                each = own[_numbers_of(name) if name in self._made else name]
                each = each * count if len(each) == 1 else each
                if len(each) != count:
                    raise ValueError(f"{kind.__name__}.{name} has {len(each)} values for {count}")
                made = list(map(self._made[name], own[name])) if name in self._made else []
                lists.append(map(made.__getitem__, each) if name in self._made else each)
            found[letter] = map(tuple_of, repeat(kind), zip(*lists, strict=True) if lists else repeat((), count))
        return list(map(next, map(found.__getitem__, columns["kinds"])))


def _numbers_of(field: str) -> str:
    return f"{field}_numbers"
