"""Columns of numbers and times are read as each of them is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.logs.numbers import commas_of, floats, integers, quantity, seconds_of_all, seconds_since_epoch

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
        assert repr(found) == repr([by(text) for text in texts])  # of which NaN may be one


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


@pytest.mark.parametrize(
    ("text", "thousands", "decimal", "unclear"),
    [
        ("2,478912E+00", 2.478912, 2.478912, 2.478912), ("2,478E+00", 2.478, 2.478, 2.478),
        ("654,5", 654.5, 654.5, 654.5),
        ("0,123", 0.123, 0.123, 0.123), ("1035,886", 1035.886, 1035.886, 1035.886), ("-2,5", -2.5, -2.5, -2.5),
        ("1,234.5", 1234.5, 1234.5, 1234.5), ("1.234,56", 1234.56, 1234.56, 1234.56), ("12_345", 12345, 12345, 12345),
        ("1,234,567", 1234567, 1234567, 1234567), ("12,345", 12345, 12.345, None), ("460.480", 460.48, None, 460.48),
        ("1,23,456", None, None, None), ("1.2.3", None, None, None), ("1E-04,5", None, None, None),
    ],
)  # fmt: skip
def test_commas_and_points_are_read_as_the_line_has_them_or_not_at_all(
    text: str, thousands: float | None, decimal: float | None, unclear: float | None
) -> None:
    assert (quantity(text), quantity(text, commas="decimal")) == (thousands, decimal)
    assert quantity(text, commas="unclear") == unclear


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"loss": "7.62", "tokens_per_second_per_device": "10,050"}, "thousands"),
        ({"tokens_per_second_per_device": "10,050"}, "thousands"),
        ({"loss": "7,62585"}, "decimal"),
        ({"loss": "9,877"}, "decimal"),
        ({"loss": "9,877", "seconds": "0.5"}, "thousands"),
        ({"loss": "2,478912E+00", "seconds": "0.5"}, "unclear"),
        ({"loss": "nan", "step": "5"}, "thousands"),
    ],
)
def test_a_line_says_what_its_commas_are(values: dict[str, str], expected: str) -> None:
    assert commas_of(values.items()) == expected


@given(st.floats(min_value=0, max_value=1e9), st.sampled_from(["{:.1f}", "{:.2f}", "{:.6E}", "{:.3f}"]))
def test_a_decimal_comma_never_makes_another_number(value: float, form: str) -> None:
    point = form.format(value)
    assert quantity(point.replace(".", ","), commas="decimal") == float(point)
    assert quantity(point.replace(".", ","), commas="unclear") in (float(point), None)
