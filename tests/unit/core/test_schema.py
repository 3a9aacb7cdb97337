"""Checks that are made of annotations: what they let pass, and the words for what they do not."""

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest

from memlab.core.schema import Limits, Others, PlainOf, Range, SchemaError, Together, check_of


@dataclass
class Inner:
    bytes: Annotated[int, Limits(range=Range(0))]
    name: str | None = None


class Loose(TypedDict, total=False):
    low: float
    high: float | None


class Made(NamedTuple):
    key: int
    share: Annotated[float, Limits(range=Range(0.0, 1.0))] = 0.5


@dataclass
class Outer:
    word: Annotated[str, Limits(choices=("red", "blue"))]
    inner: dict[str, Inner] = field(default_factory=dict)
    numbers: list[float | None] = field(default_factory=list)
    pair: Annotated[list[int], Limits(length=2)] | None = None
    loose: Annotated[Loose, Others(str), Together(("low", "high"))] = field(default_factory=dict)
    plain: Annotated[list[dict[str, Any]], PlainOf(list[Inner])] = field(default_factory=list)
    share: float = field(default=0.5, metadata={"range": Range(0.0, 1.0)})
    line: Annotated[str, Limits(printable=True)] = ""
    anything: Any = None
    made: Made | None = None


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"inner": {"a": {"bytes": 1}, "b": {"bytes": 0, "name": None}}},
        {"numbers": [1, 2.5, None]},
        {"pair": None},
        {"pair": [1, 2]},
        {"loose": {"low": 1, "high": None, "other": "text"}},
        {"plain": [{"bytes": 3}]},
        {"share": 1},
        {"line": "Größe 3 µs"},
        {"anything": [{"a": [None]}], "unknown": object()},
        {"made": [1, 0.5]},
        {"made": [0]},
    ],
)
def test_what_is_allowed(values):
    check_of(Outer)({"word": "red", **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"word": "bleu"}, "'word' cannot be 'bleu'. Did you mean 'blue'?"),
        ({"word": 1}, "'word' must be text, not 1."),
        ({"inner": [1]}, "'inner' must be keys with values, not [1]."),
        ({"inner": {"a": {}}}, "'inner.a.bytes' is missing."),
        ({"inner": {"a": {"bytes": -1}}}, "'inner.a.bytes' must be at least 0, not -1."),
        ({"inner": {"a": {"bytes": True}}}, "'inner.a.bytes' must be a whole number, not True."),
        ({"inner": {"a": {"bytes": 1.0}}}, "'inner.a.bytes' must be a whole number, not 1.0."),
        ({"inner": {"a": {"bytes": 1, "name": 2}}}, "'inner.a.name' must be text, or null, not 2."),
        ({"numbers": [1, "2"]}, "'numbers[1]' must be a number, or null, not '2'."),
        ({"pair": [1]}, "'pair' must be a list of 2 numbers, not [1]."),
        ({"pair": [1, None]}, "'pair[1]' must be a whole number, not null."),
        ({"loose": {"low": 1}}, "'loose.high' is missing next to 'low'."),
        ({"loose": {"other": 1}}, "'loose.other' must be text, not 1."),
        ({"plain": [{"bytes": 1}, {"bytes": None}]}, "'plain[1].bytes' must be a whole number, not null."),
        ({"share": 1.5}, "'share' must be at most 1.0, not 1.5."),
        ({"line": "a\x1b[2J"}, "'line' must be one line of printable text, not 'a\\x1b[2J'."),
        ({"made": []}, "'made' must be a list of 2 values, not []."),
        ({"made": [1, 2]}, "'made[1]' must be at most 1.0, not 2."),
        ({"line": "a\nb"}, "'line' must be one line of printable text, not 'a\\nb'."),
    ],
)
def test_what_is_refused_is_told_with_its_place_and_what_is_expected(values, message):
    with pytest.raises(SchemaError) as error:
        check_of(Outer)({"word": "red", **values})
    assert str(error.value) == message


def test_a_refused_value_is_told_in_few_letters_and_without_control_characters():
    deep: list = []
    for _ in range(500):
        deep = [deep]
    for value in ("x" * 100_000, 10**4000, deep, {"\x1b[2J": "\x07"}):
        with pytest.raises(SchemaError) as error:
            check_of(bool)(value)
        assert len(str(error.value)) < 150 and str(error.value).isprintable()


def test_a_type_that_no_schema_can_hold_is_a_mistake_of_ours():
    with pytest.raises(TypeError, match="complex"):
        check_of(complex)
