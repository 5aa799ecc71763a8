"""A configuration's scalar → a value of the type that its key asks for; here, once, and trusted from then on.

Every reader takes what the file or the command line holds ("FALSE", "500_000", ".975", 3e-4, true) and returns the
value, or raises ValueError with a sentence about what was expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Reader = Callable[[Any], Any]
Read = TypeVar("Read", bound=Reader)
Number = TypeVar("Number", int, float)

_TAKES: dict[Reader, str] = {}  # what each reader takes

MAX_NUMBER = 10**12  # more than any count, size or rate in a configuration; keeps arithmetic on them finite


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers from `low` to `high`; `above` and `below` say that the bound itself is not among them."""

    low: float
    high: float = MAX_NUMBER
    above: bool = False
    below: bool = False
    also: int | None = None  # a number outside that means something of its own

    def holds(self, value: float) -> bool:
        inside = self.low < value if self.above else self.low <= value
        return value == self.also or (inside and (value < self.high if self.below else value <= self.high))

    def missed_by(self, value: float) -> str:
        """The description of a number that is none of these, to follow "0 is"."""
        if self.also is not None:
            return f"neither {str(self).replace(', or ', ' nor ')}"
        if value <= self.low:
            return f"not above {_plain(self.low)}" if self.above else f"less than {_plain(self.low)}"
        return f"not less than {_plain(self.high)}" if self.below else f"more than {_plain(self.high)}"

    def __str__(self) -> str:
        """As in "give a number …"."""
        low = f"above {_plain(self.low)}" if self.above else f"from {_plain(self.low)}"
        if self.high == MAX_NUMBER:
            high = "" if self.above else " on"
        else:
            high = f" to less than {_plain(self.high)}" if self.below else f" to {_plain(self.high)}"
        return f"{low}{high}" + (f", or {self.also}" if self.also is not None else "")


FROM_ZERO, FROM_ONE, ABOVE_ZERO = Range(low=0), Range(low=1), Range(low=0, above=True)
FRACTION = Range(low=0, high=1)
LESS_THAN_ALL, MORE_THAN_NONE = Range(low=0, high=1, below=True), Range(low=0, high=1, above=True)
AXIS = Range(low=1, also=-1)  # -1: all devices that the other axes leave
PORT = Range(low=1, high=65_535)


def _plain(number: float) -> str:
    """2147483647, and not 2.14748e+09."""
    return str(int(number)) if float(number).is_integer() else repr(number)


_WHOLE = re.compile(r"[-+]?\d+(_\d+)*", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)

_UNKNOWN = (re.compile(r".*\$(\{.*\}|\w+|\(.*\)).*"), lambda text: "nothing is known here to put in its place")
_HINTS: dict[str, tuple[tuple[re.Pattern[str], Callable[[str], str]], ...]] = {
    "number": (
        (re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII), lambda text: f"write {text.replace(',', '')}"),
        (re.compile(r"[-+]?\d*,\d+", re.ASCII), lambda text: f"write {text.replace(',', '.')}, with a point"),
        (re.compile(r"[-+]?\d+(\.\d*)?[eE]\+?\d", re.ASCII), lambda text: f"write {float(text):.0f}"),
        (re.compile(r"[-+]?[\d.]+\s*[A-Za-z%][A-Za-z%/]*"), lambda text: "write the number alone"),
        (re.compile(r"(['\"]).*\1"), lambda text: "remove the quotes inside"),
        _UNKNOWN,
    ),
    "truth": (
        (re.compile(r"yes|y|on|1", re.IGNORECASE), lambda text: "write true"),
        (re.compile(r"no|n|off|0", re.IGNORECASE), lambda text: "write false"),
        _UNKNOWN,
    ),
}


def shown(value: Any) -> str:
    """A value as it is quoted in a message."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = str(value)
    text = text if len(text) <= 60 else text[:57] + "…"
    return repr(text) if isinstance(value, str) else text


def _hint(value: Any, wanted: str = "number") -> str:
    """Advice, in brackets, on writing what was probably meant; "" where that is not known."""
    text = value.strip() if isinstance(value, str) else ""
    advices = (advice(text) for pattern, advice in _HINTS[wanted] if len(text) <= 60 and pattern.fullmatch(text))
    return next((f" ({advice})" for advice in advices), "")


def takes(what: str) -> Callable[[Read], Read]:
    """A decorator of readers: what one takes, as in "give a whole number"."""

    def register(read: Read) -> Read:
        _TAKES[read] = what
        return read

    return register


def taken(read: Reader) -> str:
    """The values that a reader takes, in words; readers without a word of their own name them in the error."""
    return _TAKES.get(read, "one of the values named here")


def advice(read: Reader) -> str:
    """The fix for a value that a reader refused."""
    return f"give {taken(read)}"


def optional(read: Reader, is_null: Callable[[Any], bool] = lambda value: value is None) -> Reader:
    """The same reader, and null."""

    def inner(value: Any) -> Any:
        return None if is_null(value) else read(value)

    return takes(f"{_TAKES[read]}, or null")(inner) if read in _TAKES else inner


@takes("text")
def text(value: Any) -> str:
    """Any scalar, as its text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    raise ValueError(f"{shown(value)} is not text")


def anything(value: Any) -> Any:
    """Any value, as it is: nothing here depends on it."""
    return value


@takes("a whole number")
def whole(value: Any) -> int:
    """A whole number; underscores between digits are allowed."""
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()) and len(value) <= 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a whole number{_hint(value)}")
    if abs(value) > MAX_NUMBER:
        raise ValueError(f"{shown(value)} is out of range: no count is beyond {MAX_NUMBER:.0e}")
    return value


@takes("a number")
def decimal(value: Any) -> float:
    """A finite number."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value.strip()):
        value = float(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a number{_hint(value)}")
    if not abs(value) <= MAX_NUMBER:  # NaN too; a whole number may be too large to be made a float
        raise ValueError(f"{shown(value)} is out of range")
    return float(value)


@takes("true or false")
def boolean(value: Any) -> bool:
    """true or false, in any case."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError(f"{shown(value)} is neither true nor false{_hint(value, 'truth')}")


def in_range(limits: Range, read: Callable[[Any], Number]) -> Callable[[Any], Number]:
    """A reader for the numbers of a kind (`whole`, `decimal`) in a range."""

    @takes(f"a {'whole ' * (read is whole)}number {limits}")
    def inner(value: Any) -> Number:
        number = read(value)
        if not limits.holds(number):
            raise ValueError(f"{_plain(number)} is {limits.missed_by(number)}")
        return number

    return inner


count = in_range(FROM_ONE, whole)
natural = in_range(FROM_ZERO, whole)
axis_size = in_range(AXIS, whole)
positive = in_range(ABOVE_ZERO, decimal)
not_negative = in_range(FROM_ZERO, decimal)
share = in_range(FRACTION, decimal)
port = in_range(PORT, whole)


@takes("a list of texts")
def texts(value: Any) -> tuple[str, ...]:
    """A list of scalars, as their texts."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{shown(value)} is not a list")
    return tuple(text(item) for item in value)


class NotAChoice(ValueError):
    """A word that is none of those that a reader knows; `choices` has these."""

    def __init__(self, why: str, choices: tuple[str, ...]) -> None:
        super().__init__(why)
        self.choices = choices


def one_of(*options: str, otherwise: str = "") -> Reader:
    """A reader for one of some words; `otherwise` says more about what the rest would mean."""

    def read(value: Any) -> str:
        word = text(value)
        if word not in options:
            known = f"one of {', '.join(options)}" if len(options) > 1 else options[0]
            why = f"{shown(word)} is not {known}" + (f": {otherwise}" if otherwise else "")
            raise NotAChoice(why, options)
        return word

    return read


def mapped(options: Mapping[str, Any]) -> Reader:
    """A reader for words that stand for values."""

    def read(value: Any) -> Any:
        word = text(value)
        if word not in options:
            raise ValueError(f"{shown(word)} is not one of {', '.join(option or '(empty)' for option in options)}")
        return options[word]

    return read


def fraction_of(part: float, whole: float) -> float:
    """part / whole, as the shortest decimal number that gives the part back: 3e-5 of 3e-4 is 0.1."""
    return _shortest(part / whole, lambda fraction: fraction * whole == part)


def part_of(fraction: float, whole: float) -> float:
    """fraction × whole, as the shortest decimal number from which `fraction_of` finds the fraction again."""
    return _shortest(fraction * whole, lambda part: fraction_of(part, whole) == fraction)


def _shortest(value: float, fits: Callable[[float], bool]) -> float:
    candidates = (float(f"{value:.{digits}g}") for digits in range(1, 18))
    nearest = (math.nextafter(value, direction) for direction in (-math.inf, math.inf))
    return next((candidate for candidate in (*candidates, *nearest) if fits(candidate)), value)
