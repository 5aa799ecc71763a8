"""A comparison as one HTML file: the answer, each difference with its interval, the curves over each other."""

from __future__ import annotations

from typing import NamedTuple

from seatrial.history.compare import Comparison
from seatrial.history.gate import Gate
from seatrial.history.overlays import TONES, Drawn, named, overlays, shifts
from seatrial.history.rendering import HEAD, differences, gate_told, losses_told, notes, runs_told, settings
from seatrial.report import html
from seatrial.report.gather import clean
from seatrial.report.section import Section

MOST_DRAWN = 4  # runs a side
_WORDS = {
    "better": "B IS FASTER",
    "worse": "B IS SLOWER",
    "no_clear_difference": "NO CLEAR DIFFERENCE",
    "inconclusive": "INCONCLUSIVE",
}
_TONES = {"better": "pass", "worse": "fail", "pass": "pass", "fail": "fail"}


class Difference(NamedTuple):
    """A row of the table; `low`, `value` and `high` are places between 0 and 100 of its interval, None without one."""

    cells: tuple[str, ...]
    low: float | None
    value: float | None
    high: float | None


def render(comparison: Comparison, gate: Gate | None) -> str:
    """The whole page."""
    drawn = [
        Drawn(name if len(side) == 1 else f"{name}{number + 1}", run, tone, number)
        for name, side, tone in (("A", comparison.runs_a, TONES[0]), ("B", comparison.runs_b, TONES[1]))
        for number, run in enumerate(side[:MOST_DRAWN])
    ]
    told = [(name, clean(text)) for name, text in runs_told(comparison)]
    judgement = gate.status if gate else comparison.speed.judgement if comparison.speed else ""
    title = f"GATE: {gate.status.upper()}" if gate else _WORDS.get(judgement, "NOT COMPARED")
    return html.page(
        "comparison.html",
        ("overlays.js",),
        title=title,
        tone=_TONES.get(judgement, "inconclusive"),
        exit_code=gate.exit_code if gate else None,
        sentence=clean(comparison.sentence),
        gate=clean(gate_told(gate)) if gate else "",
        runs=told,
        legend_of=[(f"{each.name}: {named(each.run)}", each.tone, each.number) for each in drawn],
        notes=[clean(note) for note in notes(comparison)],
        change=HEAD[3],
        differences=_rows(comparison),
        losses=clean(losses_told(comparison.losses)),
        shifts=shifts(drawn),
        settings=_settings(comparison),
        data={"overlays": overlays(drawn)},
    )


def _rows(comparison: Comparison) -> list[Difference]:
    """Each metric, with its interval on one axis for all of them, on which no change is in the middle."""
    reach = max((abs(end) for c in comparison.changes for end in (c.low, c.high) if end is not None), default=0.0)
    reach = max(1.15 * reach, 0.01)

    def place(change: float | None) -> float | None:
        return None if change is None else round(50 + 50 * change / reach, 2)

    return [
        Difference(tuple(map(clean, cells)), place(change.low), place(change.change), place(change.high))
        for cells, change in zip(differences(comparison), comparison.changes, strict=True)
    ]


def _settings(comparison: Comparison) -> Section:
    rows, more = settings(comparison)
    return Section(
        key="settings",
        title="What else differs",
        columns=("Where", "Setting", "A", "B"),
        rows=tuple(tuple(map(clean, row)) for row in rows),
        notes=tuple(more) if rows else ("Nothing else is known to differ.",),
    )
