"""Named tuples of a few kinds as columns, a list for each field: millions of them are read and checked fast."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """Writes named tuples of several kinds as columns, and reads them back.

    The columns are a dictionary. ``kinds`` is a text with a letter for each tuple: ``a`` stands for the first kind.
    Each kind has a dictionary of its fields. A field has a list with the values of all tuples of the kind, in their
    order, or with one value if all are equal. A field of ``made`` has each different value once, and the list
    ``FIELD_numbers`` says which of them each tuple has.

    ``union``: of the kinds; add a new kind at its end, so that the letters of the others stay. ``made``: field ->
    function that makes a value of this field from its plain form. ``schema``: type of the dictionary.
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
            count, own = columns["kinds"].count(letter), columns[kind.__name__]
            lists = [self._values(name, own, count) for name in (kind._fields if count else ())]
            found[letter] = map(tuple_of, repeat(kind), zip(*lists, strict=True) if lists else repeat((), count))
        return list(map(next, map(found.__getitem__, columns["kinds"])))

    def _values(self, field: str, columns: Mapping[str, Any], count: int) -> Iterable[Any]:
        """Return the values of a field of ``count`` tuples of one kind. ``columns``: of this kind."""
        make = self._made.get(field)
        plain = columns[_numbers_of(field) if make else field]
        each = plain * count if len(plain) == 1 else plain
        if len(each) != count:
            raise ValueError(f"the field {field} has {len(each)} values, and there are {count} tuples")
        return map(list(map(make, columns[field])).__getitem__, each) if make else each


def _numbers_of(field: str) -> str:
    return f"{field}_numbers"
