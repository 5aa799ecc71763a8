"""The tables of keys without effect: each key once, with what becomes of it, why, and a value that its reader takes."""

from __future__ import annotations

import pytest

from seatrial.dialects.maxtext.without_effect import IN_TABLE
from seatrial.dialects.megatron.arguments import ARGUMENTS, LAUNCHER, OTHER_ARGUMENTS
from seatrial.dialects.table.coerce import anything
from seatrial.dialects.table.without_effect import rows

TABLES = {"maxtext": IN_TABLE, "megatron": OTHER_ARGUMENTS}


@pytest.mark.parametrize("dialect", TABLES)
def test_every_key_is_there_once_with_what_becomes_of_it_and_why(dialect: str) -> None:
    found = list(rows(dialect, lambda name, kind, value: anything))
    names = [name for name, _ in found]
    assert len(names) == len(set(names)) == len(TABLES[dialect]) > 400
    assert {row.disposition for _, row in found} == {"equivalent", "ignored", "rejected"}
    assert all(row.why for _, row in found)


@pytest.mark.parametrize("dialect", TABLES)
def test_the_value_of_which_no_effect_is_expected_can_be_given(dialect: str) -> None:
    quiet = {name: row for name, row in TABLES[dialect].items() if row.quiet}
    assert quiet
    for row in quiet.values():
        row.read(row.quiet[0])  # a ValueError says which value is none of the key's


def test_no_argument_of_megatron_has_two_rows() -> None:
    assert not OTHER_ARGUMENTS.keys() & {*ARGUMENTS, *LAUNCHER}
