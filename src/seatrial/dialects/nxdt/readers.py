"""A scalar of an NxDT file → a value: what PyYAML and OmegaConf make of it there, read by YAML 1.2 here.

Two words differ between the two YAMLs: `yes` and `on` are true in 1.1 and text in 1.2; and many files write Python's
None, which is text in both and means null.
"""

from __future__ import annotations

from typing import Any

from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Reader

_YES_NO = {"yes": True, "on": True, "no": False, "off": False}


def is_null(value: Any) -> bool:
    """Whether a value is null, or Python's word for it."""
    return value is None or value == "None"


def optional(read: Reader) -> Reader:
    """The same reader, and null."""

    return coerce.optional(read, is_null)


@coerce.takes("true or false")
def boolean(value: Any) -> bool:
    """true or false, and YAML 1.1's words for them."""
    if isinstance(value, str) and value.lower() in _YES_NO:
        return _YES_NO[value.lower()]
    return coerce.boolean(value)


@coerce.takes("a whole number from 0 on")
def natural(value: Any) -> int:
    number = coerce.whole(value)
    if number < 0:
        raise ValueError(f"{number} is less than 0")
    return number


@coerce.takes("a whole number from 1 on, or -1 for as many as there are")
def count_or_all(value: Any) -> int | None:
    number = coerce.whole(value)
    if number < 1 and number != -1:
        raise ValueError(f"{number} is neither a number from 1 on nor -1")
    return None if number == -1 else number


@coerce.takes("a whole number from 0 on, or -1 for all")
def natural_or_all(value: Any) -> int:
    number = coerce.whole(value)
    if number < -1:
        raise ValueError(f"{number} is neither a number from 0 on nor -1")
    return number


@coerce.takes("a number from 0 on")
def not_negative(value: Any) -> float:
    number = coerce.decimal(value)
    if number < 0:
        raise ValueError(f"{number:g} is less than 0")
    return number


@coerce.takes("a number from 0 to 1")
def share(value: Any) -> float:
    number = coerce.decimal(value)
    if not 0 <= number <= 1:
        raise ValueError(f"{number:g} is not between 0 and 1")
    return number


@coerce.takes("a number from 0 to less than 1")
def probability(value: Any) -> float:
    number = coerce.decimal(value)
    if not 0 <= number < 1:
        raise ValueError(f"{number:g} is not a probability below 1")
    return number


@coerce.takes("a number above 0, up to 1")
def positive_share(value: Any) -> float:
    number = coerce.positive(value)
    if number > 1:
        raise ValueError(f"{number:g} is more than 1")
    return number


@coerce.takes(
    "1 for one batch, 1.0 for all of them, 0 for none: a whole number counts, a number with a point is a share"
)
def portion(value: Any) -> int | float:
    """A number of batches (int) or a share of them (float), as Lightning tells them apart: by the type."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{coerce.shown(value)} is neither a number of batches nor a share of them")
    return natural(value) if isinstance(value, int) else share(value)


@coerce.takes("a seed from 1 on")
def seed(value: Any) -> int:
    number = coerce.whole(value)
    if not 1 <= number < 2**31:
        raise ValueError(f"{number} is not a seed: NxDT takes whole numbers above 0, and below 2147483648")
    return number


@coerce.takes("two numbers from 0 to 1, [beta1, beta2]")
def betas(value: Any) -> tuple[float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        what = f"a list of {len(value)}" if isinstance(value, (list, tuple)) else coerce.shown(value)
        raise ValueError(f"{what} is not a pair of numbers")
    return share(value[0]), share(value[1])


@coerce.takes("the number of copies, a whole number from 1 on")
def copies(value: Any) -> int:
    if isinstance(value, bool):
        word = str(value).lower()
        raise ValueError(f"{word} is no number: NxDT's documentation calls this a bool, but its code multiplies by it")
    return coerce.count(value)


@coerce.takes("'0' or '1'")
def switch(value: Any) -> bool:
    """NxDT's '0' and '1', which it exports as environment variables."""
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    if value in ("0", "1"):
        return bool(value == "1")
    raise ValueError(f"{coerce.shown(value)} is neither '0' nor '1', nor true or false")


@coerce.takes("a path or a name")
def named(value: Any) -> str:
    text = coerce.text(value)
    if not text:
        raise ValueError("it is empty")
    return text


def anything(value: Any) -> Any:
    """Whatever it is: nothing here reads it."""
    return tuple(value) if isinstance(value, list) else value


def choice(*options: str, otherwise: str = "") -> Reader:
    """One of some words."""
    return coerce.one_of(*options, otherwise=otherwise)
