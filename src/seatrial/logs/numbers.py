"""How logs write numbers and times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache

CUT = "…"  # stands behind a number that may have been cut
# What may stand behind a number, and what it multiplies by. "GB" is what is printed, whatever was meant.
_SUFFIXES = {
    "": 1.0, "s": 1.0, "ms": 1e-3,
    "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12,
    "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
NUMBER = r"[-+]?(?:nan|inf(?:inity)?|(?:\d{1,3}(?:[,_]\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
_QUANTITY = re.compile(rf"\s*({NUMBER})\s*([%A-Za-z]*)", re.IGNORECASE)

# A date and time, as frameworks print them; the last one, without a year, is absl's ("I1121 03:42:19.314119").
_TIMES = re.compile(
    r"(?P<iso>\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    r"|(?P<compact>\d{8} \d\d:\d\d:\d\d)"
    r"|\b[IWEF](?P<absl>\d{4} \d\d:\d\d:\d\d\.\d{1,6})\b"
)
NEAR = 400  # characters between a time and what it is the time of
NO_YEAR = 1972  # stands in where a log gives none: a leap year, and visibly wrong


def quantity(text: str, part: int = 0) -> float | None:
    """The number that a text begins with, its suffix applied; of "a/b/c" the one numbered `part`. None without any.

    Knows nan, inf, 1.249e+03, 12,345 and 14.6K, 88.81%, 66.91GiB.
    """
    if part:
        pieces = text.split("/")
        text = pieces[part] if part < len(pieces) else ""
    found = _QUANTITY.match(text)
    if found is None or text.endswith(CUT):
        return None
    number, suffix = found.groups()
    value = float(number.replace(",", "").replace("_", ""))
    return value / 100 if suffix == "%" else value * _SUFFIXES.get(suffix, 1.0)


def find_time(text: str, end: int) -> tuple[int, int] | None:
    """Where the last date and time shortly before `end` stands."""
    last = None
    for found in _TIMES.finditer(text, max(0, end - NEAR), end):
        last = found
    return last.span(last.lastgroup or 0) if last else None


@lru_cache(maxsize=64)
def _minute(text: str) -> float | None:
    """Seconds since the epoch of "2024-04-06 02:55", "20251121 12:10" or "1121 03:42", taken as UTC."""
    digits = re.sub(r"\D", "", text)
    try:
        year, rest = (int(digits[:4]), digits[4:]) if len(digits) == 12 else (NO_YEAR, digits)
        month, day, hour, minute = (int(rest[n : n + 2]) for n in (0, 2, 4, 6))
        return datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp()
    except ValueError:
        return None


def seconds_of_all(texts: Sequence[str]) -> list[float | None]:
    """`seconds_since_epoch` of each."""
    if texts[0][4:5] == "-":
        with suppress(ValueError):
            return [datetime.fromisoformat(text + "+00:00").timestamp() for text in texts]
    return list(map(seconds_since_epoch, texts))


def seconds_since_epoch(text: str) -> float | None:
    """The time that `find_time` found, as seconds since the epoch; its time zone is not known and taken as UTC."""
    try:
        if text[4:5] == "-":
            return datetime.fromisoformat(text + "+00:00").timestamp()
        minutes, _, seconds = text.rpartition(":")
        start = _minute(minutes)
        return None if start is None else start + float(seconds)
    except ValueError:
        return None
