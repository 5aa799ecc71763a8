"""The curves of several runs, to be drawn over each other, with the shifts of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from seatrial.history.loaded import LoadedRun
from seatrial.report.charts import MAX_POINTS, curve_data
from seatrial.report.figures import slower_by
from seatrial.report.gather import clean
from seatrial.report.section import Section
from seatrial.verdict import show_beside

DRAWN = ("loss", "seconds", "rate", "grad_norm")
TONES = tuple(f"run-{letter}" for letter in "abcdefgh")
MOST_MARKS = 4


class Drawn(NamedTuple):
    """A run with the name that its curve has, its colour (one of TONES) and its number among those of that colour."""

    name: str
    run: LoadedRun
    tone: str
    number: int = 0


def overlays(runs: Sequence[Drawn]) -> dict[str, Any]:
    """The curves that any of the runs has, as plain data: a chart each, a line per run."""
    parts: list[dict[str, Any]] = [
        {"name": each.name, "tone": each.tone, "number": each.number}
        | curve_data(each.run.steps, each.run.metrics.performance, MAX_POINTS // len(runs))
        for each in runs
    ]
    charts = {}
    for name in DRAWN:
        found = [part["curves"][name] for part in parts if name in part["curves"]]
        if found:
            ends = [end for curve in found for end in curve["frame"] or ()]
            frame = [min(ends), max(ends)] if ends else None
            charts[name] = {"title": found[0]["title"], "unit": found[0]["unit"], "frame": frame}
    return {"runs": parts, "charts": charts, "marks": list(_marks(runs))}


def _marks(runs: Sequence[Drawn]) -> Iterator[dict[str, Any]]:
    for each in runs:
        for shift in each.run.metrics.performance.shifts[:MOST_MARKS]:
            text = f"{each.name}: {slower_by(shift.change)} from step {shift.step}"
            yield {"curves": ["seconds", "rate"], "step": shift.step, "text": text, "tone": each.tone}


def shifts(runs: Sequence[Drawn]) -> Section:
    """The table of level shifts: the steps from which each run was slower or faster."""
    rows = []
    for each in runs:
        in_seconds = each.run.metrics.performance.step_times is not None
        for shift in each.run.metrics.performance.shifts:
            before, after = show_beside(shift.before_seconds, shift.after_seconds) if in_seconds else ("", "")
            rows.append((each.name, f"{shift.step}", slower_by(shift.change), before, after))
    return Section(
        key="shifts",
        title="Level shifts",
        columns=("Run", "From step", "Change", "Before, s", "After, s"),
        rows=tuple(rows),
        numbers=("From step", "Before, s", "After, s"),
        notes=() if rows else ("The speed shifts in none of these runs.",),
    )


def named(run: LoadedRun) -> str:
    """The last part of a run's directory, for a legend."""
    return clean(run.directory.rstrip("/").rpartition("/")[2])
