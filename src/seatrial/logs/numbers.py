"""Reads numbers and times as logs write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic_core import SchemaValidator, core_schema

CUT = "…"  # stands behind a number that may have been cut
# What may stand behind a number, and what it multiplies by. "GB" is what is printed, whatever was meant.
_SUFFIXES = {
    "": 1.0, "s": 1.0, "ms": 1e-3,
    "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12,
    "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
_DIGITS, _EXPONENT = r"\d+(?:[.,_]\d+)*\.?|\.\d+", r"[eE][-+]?\d+"
# All of a number: what goes on with digits behind a point, a comma or an E was not read to its end.
NUMBER = rf"[-+]?(?:nan|inf(?:inity)?|(?:{_DIGITS})(?:{_EXPONENT})?)(?![.,_]?\d|{_EXPONENT})"
_QUANTITY = re.compile(rf"\s*({NUMBER})\s*([%A-Za-z]*)", re.IGNORECASE)
_WRITTEN = re.compile(rf"({_DIGITS})({_EXPONENT})?")

Commas = Literal["thousands", "decimal", "unclear"]
_POINT = re.compile(r"\d*\.?\d*")
_GROUPS = re.compile(r"[1-9]\d{0,2}(?:[,_]\d{3})+(?:\.\d*)?")
_COMMA = re.compile(r"\d+,\d+|[1-9]\d{0,2}(?:\.\d{3})+,\d+")  # the second: of a locale whose thousands have points
_EITHER = re.compile(r"[1-9]\d{0,2}([.,])\d{3}")  # 12,345 and 12.345 are a fraction in one locale, thousands in another
# No program writes these in groups of thousands without a decimal point behind them.
_MEASURES = frozenset({"loss", "seconds", "grad_norm", "learning_rate", "tflops_per_second_per_device", "mfu"})

_SUFFIX = re.compile(r"[%A-Za-z]*\Z")
_WITH_THOUSANDS = re.compile(r"(?:(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?\n)*", re.ASCII)
_FLOATS = SchemaValidator(core_schema.list_schema(core_schema.float_schema(strict=True)))
_INTEGERS = SchemaValidator(core_schema.list_schema(core_schema.int_schema(strict=True)))

# A date and time, as frameworks print them; the last one, without a year, is absl's ("I1121 03:42:19.314119").
_TIMES = re.compile(
    r"(?P<iso>\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    r"|(?P<compact>\d{8} \d\d:\d\d:\d\d)"
    r"|\b[IWEF](?P<absl>\d{4} \d\d:\d\d:\d\d\.\d{1,6})\b"
)
# Those of lines that are no steps, too: torch's "[E921 09:41:21.160918398", Ascend's "2026-03-01-10:02:20.444.436", and
# the kernel's and syslog's "Nov 21 03:04:05", with a year behind it or none.
_STATED = re.compile(
    r"(?P<year>20\d\d)-(?P<month>\d\d)-(?P<day>\d\d)[ T_-](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"|(?:\b|\[)[IWEF](?P<month2>\d?\d)(?P<day2>\d\d) (?P<time2>\d\d:\d\d:\d\d)\.(?P<part2>\d{1,9})\b"
    r"|\b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(?P<day3>\d?\d) (?P<time3>\d\d:\d\d:\d\d)"
    r"(?: (?P<year3>20\d\d)\b)?"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
HEAD = 120  # characters of a line in which what logging puts before a message stands
_EPOCH = datetime(1970, 1, 1)
NEAR = 400  # characters between a time and what it is the time of
NO_YEAR = 1972  # stands in where a log gives none, until `clock` knows better: a leap year, and visibly wrong


def quantity(text: str, part: int = 0, commas: Commas = "thousands") -> float | None:
    """The number that a text begins with, its suffix applied; of "a/b/c" the one numbered `part`. None without any.

    Knows nan, inf, 1.249e+03, 12,345 and 14.6K, 88.81%, 66.91GiB, and of decimal commas those that can be nothing else:
    2,478912E+00. What 2,478 is depends on `commas`, as `commas_of` finds them; None if that is unclear.
    """
    if part:
        pieces = text.split("/")
        text = pieces[part] if part < len(pieces) else ""
    found = _QUANTITY.match(text)
    if found is None or text.endswith(CUT):
        return None
    number, suffix = found.groups()
    value = float(number) if number[-1] in "nfyNFY" else _value(number, commas)
    if value is None:
        return None
    return value / 100 if suffix == "%" else value * _SUFFIXES.get(suffix, 1.0)


def _value(number: str, commas: Commas) -> float | None:
    """A number that is finite; None where its points and commas do not say which it is."""
    if "," not in number and "_" not in number and commas != "decimal":
        return float(number) if number.count(".") < 2 else None
    if commas == "thousands" and _GROUPS.fullmatch(number):
        return float(number.replace(",", "").replace("_", ""))
    digits, exponent = _WRITTEN.findall(number)[0]
    sign = "-" if number[0] == "-" else ""
    either = _EITHER.fullmatch(digits)
    if either and not exponent:
        if commas == "unclear" or (commas == "decimal" and either[1] == "."):
            return None
        digits = digits.replace(",", "." if commas == "decimal" else "")
    elif _GROUPS.fullmatch(digits) and not (exponent and either):
        digits = digits.replace(",", "").replace("_", "")
    elif _COMMA.fullmatch(digits):
        digits = digits.replace(".", "").replace(",", ".")
    elif not _POINT.fullmatch(digits):
        return None
    return float(sign + digits + exponent)


def commas_of(named: Iterable[tuple[str, str]]) -> Commas:
    """The meaning of a comma in the values of a line, each with its name (`grammar.Field.name`).

    One value that can only be read in one way decides for those that can be read in two. Where there is none, a comma
    in a loss, a time or another measure is a decimal one: nobody writes thousands of these.
    """
    by_point = by_comma = measured = False
    for name, text in named:
        for digits, exponent in _WRITTEN.findall(text):
            either = None if exponent else _EITHER.fullmatch(digits)
            by_point |= "." in digits and not either and not _COMMA.fullmatch(digits)
            by_comma |= "," in digits and not either and _COMMA.fullmatch(digits) is not None
            if either and name in _MEASURES:
                measured |= either[1] == ","
    if by_point:
        return "unclear" if by_comma else "thousands"
    return "decimal" if by_comma or measured else "thousands"


def commas_for(name: str, commas: Commas) -> Commas:
    """The meaning of a comma in a value of this name; in a line with decimal commas, 10,050 tokens may be 10 050."""
    return "unclear" if commas == "decimal" and name not in _MEASURES else commas


def json_number(value: Any) -> float | None:
    """A number of JSON; None for anything else, true and false too, and for one that is too large."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def floats(texts: Sequence[str]) -> list[float]:
    """`float` of each, as the numbers of a JSON list, which takes a third of the time.

    Raises ValueError where one of them is no number of JSON (nan, +1, .5), though it may well be one for `float`.
    """
    return _numbers(_FLOATS, texts)


def quantities(texts: Sequence[str]) -> list[float]:
    """`quantity` of each, in the same way, of numbers with the same suffix, which may have commas between thousands.

    Raises ValueError or KeyError where one of them is no such number.
    """
    suffix, text = _SUFFIX.findall(texts[0])[0], "\n".join((*texts, ""))
    factor = 1.0 if suffix == "%" else _SUFFIXES[suffix]
    if suffix:
        if text.count(suffix + "\n") < len(texts):
            raise ValueError("not all have this suffix")
        text = text.replace(suffix + "\n", "\n")
    if "," in text:
        if not _WITH_THOUSANDS.fullmatch(text):
            raise ValueError("a comma in another place")
        text = text.replace(",", "")
    found = np.array(_FLOATS.validate_json(f"[{text[:-1].replace(chr(10), ',')}]"))
    values: list[float] = (found / 100 if suffix == "%" else found * factor).tolist()
    return values


def integers(texts: Sequence[str]) -> list[int]:
    """`int` of each, in the same way."""
    return _numbers(_INTEGERS, texts)


def _numbers(validator: SchemaValidator, texts: Sequence[str]) -> list[Any]:
    found: list[Any] = validator.validate_json("[" + ",".join(texts) + "]")
    if len(found) != len(texts):
        raise ValueError("a comma in a number")
    return found


def find_time(text: str, end: int) -> tuple[int, int] | None:
    """The span of the last date and time shortly before `end`; None without one."""
    last = None
    for found in _TIMES.finditer(text, max(0, end - NEAR), end):
        last = found
    return last.span(last.lastgroup or 0) if last else None


def stated_time(text: str) -> float | None:
    """When a line says that it was printed, in seconds since the epoch; of `NO_YEAR` where it gives no year.

    Of several times at its beginning, the last one counts: launchers put theirs before the program's. Else it is the
    first one of the line. A time zone is left aside, as in `seconds_since_epoch`. None without any.
    """
    found = None
    for match in _STATED.finditer(text, 0, NEAR):
        if found is None or match.start() < HEAD:
            found = match
    return None if found is None else _seconds(found)


def _seconds(found: re.Match[str]) -> float | None:
    groups = {name.rstrip("23"): value for name, value in found.groupdict().items() if value is not None}
    month = _MONTHS.index(groups["name"]) + 1 if "name" in groups else int(groups["month"])
    hour, minute, second = map(int, groups["time"].split(":"))
    try:
        moment = datetime(int(groups.get("year", NO_YEAR)), month, int(groups["day"]), hour, minute, second)
    except ValueError:
        return None
    return (moment - _EPOCH).total_seconds() + float(f"0.{groups.get('part', '0')}")


@lru_cache(maxsize=256)
def _day(text: str) -> int:
    """Seconds since the epoch at the beginning of "2025-11-21", "20251121" or "1121". Raises ValueError for no date."""
    digits = text.replace("-", "")
    year = int(digits[:-4]) if len(digits) == 8 else NO_YEAR
    return (datetime(year, int(digits[-4:-2]), int(digits[-2:])) - _EPOCH).days * 86_400


def seconds_since_epoch(text: str) -> float | None:
    """The time that `find_time` found, as seconds since the epoch; its time zone is not known and taken as UTC."""
    try:
        if text[4:5] == "-":
            return (datetime.fromisoformat(text) - _EPOCH).total_seconds()
        return seconds_of_all([text])[0]
    except ValueError:
        return None


def seconds_of_all(texts: Sequence[str]) -> list[float]:
    """`seconds_since_epoch` of each of these, which have digits at the same places, and elsewhere the same characters.

    Raises ValueError where one of them is no time.
    """
    hour = texts[0].index(":") - 2
    digits = np.frombuffer("".join(texts).encode("ascii"), np.uint8).reshape(len(texts), -1) - 48
    hours, minutes, seconds = (
        10 * digits[:, at].astype(np.int64) + digits[:, at + 1] for at in (hour, hour + 3, hour + 6)
    )
    is_iso = texts[0][4] == "-"
    if hours.max() > 23 or minutes.max() > 59 or (is_iso and seconds.max() > 59):
        raise ValueError("no time of day")
    is_one = (digits[:, :hour] == digits[0, :hour]).all()
    start = np.array([_day(text[: hour - 1]) for text in (texts[:1] if is_one else texts)])
    parts = digits[:, hour + 9 :][:, :6]  # of a second
    scale = 10 ** parts.shape[1]
    after = scale * seconds + parts @ (scale // 10 ** np.arange(1, parts.shape[1] + 1))
    whole = start + 3600 * hours + 60 * minutes
    # As `datetime` rounds it, and as the sum of two numbers that were read.
    found: list[float] = ((scale * whole + after) / scale if is_iso else whole + after / scale).tolist()
    return found
