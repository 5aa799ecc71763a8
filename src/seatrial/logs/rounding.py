"""The possible error of a printed number: it has the digits that are printed, and no more."""

from __future__ import annotations

from collections.abc import Sequence

ROUNDED = 5e-4  # relative: Hugging Face's Trainer prints four digits since version 5


def rounding(values: Sequence[float]) -> float:
    """The most that any of these may be off: they have the decimals that one of them shows, and four digits."""
    decimals = max(len(text.partition(".")[2]) if "e" not in (text := repr(value)) else 0 for value in values)
    return max(ROUNDED * max(values), 0.5 * 10.0**-decimals)


def relative_rounding(value: float) -> float:
    """The same of one, as a fraction of it; 1 of a number that is not above 0."""
    return rounding([value]) / value if value > 0 else 1.0
