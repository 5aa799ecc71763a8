"""Scalars as configurations spell them, against what they mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Reader


@pytest.mark.parametrize(
    ("read", "written", "value"),
    [
        (coerce.boolean, "False", False), (coerce.boolean, "FALSE", False), (coerce.boolean, "true", True),
        (coerce.boolean, True, True),
        (coerce.whole, "500_000", 500_000), (coerce.whole, "-1", -1), (coerce.whole, 8.0, 8), (coerce.whole, " 7 ", 7),
        (coerce.decimal, "1.0e-5", 1e-5), (coerce.decimal, ".975", 0.975), (coerce.decimal, "500_000", 5e5),
        (coerce.decimal, "3e-4", 3e-4), (coerce.decimal, 2, 2.0), (coerce.decimal, "-5.", -5.0),
        (coerce.axis_size, "-1", -1), (coerce.port, "1234", 1234), (coerce.positive, "0.5", 0.5),
        (coerce.text, True, "true"), (coerce.text, 3, "3"), (coerce.texts, ["a", 1], ("a", "1")),
        (coerce.one_of("a", "b"), "b", "b"), (coerce.mapped({"": None, "x": 1}), "", None),
    ],
)  # fmt: skip
def test_a_scalar_means_what_its_key_asks_for(read: Reader, written: Any, value: Any) -> None:
    got = read(written)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    ("read", "written", "said"),
    [
        (coerce.boolean, "yes", "'yes' is neither true nor false"), (coerce.boolean, 1, "neither true nor false"),
        (coerce.whole, "1.5", "'1.5' is not a whole number"), (coerce.whole, True, "not a whole number"),
        (coerce.whole, "1__0", "not a whole number"), (coerce.whole, "9" * 30, "not a whole number"),
        (coerce.whole, [1], "a list is not a whole number"), (coerce.whole, None, "null is not a whole number"),
        (coerce.whole, "٣", "not a whole number"),
        (coerce.decimal, "nan", "is not a number"), (coerce.decimal, float("inf"), "out of range"),
        (coerce.decimal, "1e999", "out of range"), (coerce.decimal, "", "is not a number"),
        (coerce.count, "0", "0 is less than 1"), (coerce.axis_size, "-2", "nor -1"), (coerce.axis_size, 0, "nor -1"),
        (coerce.port, 70_000, "more than 65535"), (coerce.positive, 0, "not above 0"), (coerce.text, {}, "a mapping"),
        (coerce.texts, "a", "'a' is not a list"), (coerce.texts, [[]], "a list is not text"),
        (coerce.one_of("a", "b"), "c", "'c' is not one of a, b"), (coerce.one_of("a", otherwise="no"), "c", "a: no"),
        (coerce.mapped({"": 1}), "c", "'c' is not one of (empty)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(read: Reader, written: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        read(written)
    assert said in str(caught.value)


READERS = (
    coerce.text, coerce.whole, coerce.decimal, coerce.boolean, coerce.count, coerce.axis_size, coerce.positive,
    coerce.port, coerce.texts, coerce.one_of("a"), coerce.mapped({"a": 1}),
)  # fmt: skip
anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text()) | st.just({})


@given(written=anything, read=st.sampled_from(READERS))
def test_nothing_else_is_ever_raised(written: Any, read: Reader) -> None:
    try:
        read(written)
    except ValueError as error:
        message = str(error)
        assert message
