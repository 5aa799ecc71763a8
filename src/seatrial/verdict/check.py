"""A check: one question put to a run, and its answer with the evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from seatrial.spec import METRICS, Expectation

Axis = Literal["completion", "numerics", "performance"]
Status = Literal["pass", "fail", "inconclusive", "not_applicable"]
Answer = tuple[Status, str]  # with the sentence that says why

AXES: tuple[Axis, ...] = ("completion", "numerics", "performance")
WORST_FIRST: tuple[Status, ...] = ("fail", "inconclusive", "pass", "not_applicable")


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check: the measured value, its bound, the steps measured (`window`), and what that means (`sentence`)."""

    name: str
    axis: Axis
    status: Status
    sentence: str
    measured: float | str | None = None
    bound: float | str | None = None
    unit: str = ""
    window: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name for a reader."""
        return METRICS[self.name].title if self.name in METRICS else self.name


def allowed(target: Expectation, tolerance: float) -> float:
    """The fraction by which a target may be missed: its own tolerance, or that of the verdict."""
    return tolerance if target.tolerance is None else target.tolerance


def show(value: float | str | None, unit: str = "") -> str:
    """A value for a reader: about four digits, and its unit."""
    if value is None or isinstance(value, str):
        return "not reported" if value is None else value
    if unit == "fraction":
        return f"{value:.2%}"
    return f"{value:,.0f} {unit}".strip() if value % 1 == 0 else _with_decimals(value, unit)


def show_beside(*values: float | str | None, unit: str = "") -> tuple[str, ...]:
    """Values that a reader compares: a whole one has decimals if another has some.

    7.000 s stands beside 6.998 s; zero stays 0.
    """
    numbers = [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
    if unit == "fraction" or all(number % 1 == 0 for number in numbers):
        return tuple(show(value, unit) for value in values)
    return tuple(_with_decimals(value, unit) if value and value in numbers else show(value, unit) for value in values)


def _with_decimals(value: Any, unit: str) -> str:
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:,.{digits}f} {unit}".strip() if size >= 0.1 or size == 0 else f"{value:.3g} {unit}".strip()
