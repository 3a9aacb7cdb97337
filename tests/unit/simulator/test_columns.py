from typing import NamedTuple

import pytest

from memlab.core.schema import SchemaError, check_of
from memlab.simulator.trace.columns import Columns


class Made(NamedTuple):
    key: int
    sizes: tuple[int, ...]
    stream: int = 0


class Ended(NamedTuple):
    pass


COLUMNS = Columns(Made | Ended, {"sizes": tuple})
VALUES = [Made(1, (2, 3)), Ended(), Made(4, (5,)), Ended()]
SIZES = {"sizes": [(2, 3), (5,)], "sizes_numbers": [0, 1]}
PLAIN = {"kinds": "abab", "Made": {"key": [1, 4], **SIZES, "stream": [0]}, "Ended": {}}


def test_each_field_of_a_kind_has_a_list_or_the_one_value_of_all_and_long_values_are_there_once():
    assert COLUMNS.to_json(VALUES) == PLAIN
    assert COLUMNS.from_json(PLAIN) == VALUES
    assert COLUMNS.from_json(COLUMNS.to_json([])) == []
    alike = [Made(1, (2, 3)), Made(2, (2, 3)), Made(3, (5,))]
    assert COLUMNS.to_json(alike)["Made"] == {
        "key": [1, 2, 3],
        "sizes": [(2, 3), (5,)],
        "sizes_numbers": [0, 0, 1],
        "stream": [0],
    }
    assert COLUMNS.from_json(COLUMNS.to_json(alike)) == alike


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kinds": "abaab"}, ValueError),
        ({"kinds": "ababc"}, LookupError),
        ({"Made": {"key": [1, 4], "stream": [0]}}, LookupError),
        ({"Made": {**PLAIN["Made"], "sizes_numbers": [0, 2]}}, LookupError),
        ({"Made": {**PLAIN["Made"], "stream": [0, 0, 0]}}, ValueError),
    ],
)
def test_lists_that_do_not_fit_are_refused(change, error):
    with pytest.raises(error):
        COLUMNS.from_json(PLAIN | change)


def test_the_schema_checks_each_value():
    plain = PLAIN | {"Made": {**PLAIN["Made"], "sizes": [[2, 3], [5]]}}
    check_of(COLUMNS.schema)(plain)
    with pytest.raises(SchemaError, match=r"Made.sizes\[1\]\[0\]' must be a whole number, not null"):
        check_of(COLUMNS.schema)(plain | {"Made": {"sizes": [[2, 3], [None]]}})
