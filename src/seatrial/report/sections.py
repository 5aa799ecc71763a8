"""What a report tells beside the verdict, as tables: the same ones in every format, and only those that have a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seatrial.report.gather import RunReport


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table of texts: `numbers` names its columns of figures, `strong` its rows that matter most.

    `first`: it says what went wrong, so it stands before everything else.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[str, ...] = ()
    strong: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    first: bool = False


def sections(report: RunReport) -> list[Section]:
    """The sections of a report in the order of reading."""
    found = (make(report) for make in _SECTIONS)
    return [section for section in found if section and (section.rows or section.notes)]


def _faults(report: RunReport) -> Section | None:
    completion = report.metrics.completion if report.metrics else None
    if completion is None:
        return None
    return Section(
        key="faults",
        first=True,
        title="What went wrong, in order",
        columns=("Seconds", "Fault", "Where", "Evidence"),
        rows=tuple((f"{f.seconds:.1f}", f.fault.replace("_", " "), f.where, f.text) for f in completion.faults),
        numbers=("Seconds",),
        strong=frozenset(index for index, fault in enumerate(completion.faults) if fault == completion.culprit),
    )


def _attempts(report: RunReport) -> Section | None:
    completion = report.metrics.completion if report.metrics else None
    times = report.metrics.performance.step_times if report.metrics else None
    if completion is None or len(completion.attempts) < 2:
        return None
    rows = tuple(
        (str(number), f"{a.first_step}–{a.last_step}", f"{a.num_steps:,}")
        for number, a in enumerate(completion.attempts, 1)
    )
    return Section(
        key="attempts",
        title="Attempts",
        columns=("Attempt", "Steps", "Recorded"),
        rows=rows,
        numbers=("Recorded",),
        strong=frozenset([times.attempt - 1] if times else []),
        notes=(f"Speed is measured in attempt {times.attempt}.",) if times else (),
    )


_SECTIONS: tuple[Callable[[RunReport], Section | None], ...] = (_faults, _attempts)
