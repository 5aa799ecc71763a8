"""Columns of numbers and times are read as each of them is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.logs.numbers import floats, integers, seconds_of_all, seconds_since_epoch

FORMATS = ("{:.6E}", "{:.3f}", "{!r}", "{:.0f}", "{:e}", "{:.17g}")


@given(st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(FORMATS)), min_size=1))
def test_floats_are_those_of_python(numbers: list[tuple[float, str]]) -> None:
    texts = [form.format(number) for number, form in numbers]
    assert floats(texts) == [float(text) for text in texts]
    assert {type(number) for number in floats(texts)} == {float}


@given(st.lists(st.integers(), min_size=1))
def test_integers_are_those_of_python(numbers: list[int]) -> None:
    assert integers([str(number) for number in numbers]) == numbers


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "+1.0", ".5", "1.", "1,5", "1\n2", '"1"', "null", "[1]", "1_0"])
def test_what_is_no_number_of_json_is_refused(text: str) -> None:
    for read in (floats, integers):
        with pytest.raises(ValueError, match=r"."):
            read(["1", text, "2"])


@given(st.lists(st.text(max_size=4), min_size=1, max_size=4))
def test_any_text_is_a_number_or_refused(texts: list[str]) -> None:
    for read, by in ((floats, float), (integers, int)):
        try:
            found = read(texts)
        except ValueError:
            continue
        assert found == [by(text) for text in texts]


STYLES = ("%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S,%f", "%Y%m%d %H:%M:%S")
TIMES = st.datetimes(min_value=datetime(1980, 1, 1), max_value=datetime(2037, 1, 1))


@given(st.lists(TIMES, min_size=1), st.sampled_from(STYLES))
def test_times_are_those_of_the_standard_library(times: list[datetime], style: str) -> None:
    texts = [time.strftime(style) for time in times]
    expected = [datetime.strptime(text, style).replace(tzinfo=UTC).timestamp() for text in texts]
    assert seconds_of_all(texts) == pytest.approx(expected, abs=1e-6, rel=0)
    assert seconds_of_all(texts) == [seconds_since_epoch(text) for text in texts]


@pytest.mark.parametrize(
    "text",
    ["2024-02-30 01:02:03", "2024-13-01 01:02:03", "2024-02-01 25:02:03", "2024-02-01 01:75:03", "0230 01:02:03.5"],
)
def test_times_that_do_not_exist_are_none(text: str) -> None:
    assert seconds_since_epoch(text) is None
    with pytest.raises((KeyError, ValueError), match=r"."):
        seconds_of_all([text, text])
