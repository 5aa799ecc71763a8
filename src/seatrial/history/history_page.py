"""The runs of an index as one HTML file: the table, their speeds in the order of time, and the newest in one chart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import InputError
from seatrial.history.loaded import load
from seatrial.history.overlays import TONES, Drawn, overlays, shifts
from seatrial.history.summary import IndexRow, configuration_of, without_copies
from seatrial.report import html
from seatrial.report.charts import MAX_POINTS
from seatrial.report.gather import clean

MOST_OVERLAID = 6
NUMBERS = ("step s [95%]", "tokens/s/dev", "TFLOP/s/dev", "MFU", "loss")
Listed = tuple[IndexRow, str, tuple[str, ...]]  # with its id, and its cells


def render(root: Path, titles: Sequence[str], rows: Sequence[Listed], notes: Sequence[str]) -> str:
    """The whole page; the newest runs that can be read are drawn over each other."""
    drawn = _newest(rows)
    speeds, groups = _speeds(rows)
    return html.page(
        "history.html",
        ("overlays.js", "speeds.js"),
        title=f"Runs below {clean(str(root))}",
        columns=list(titles),
        numbers=NUMBERS,
        rows=[tuple(map(clean, cells)) for _, _, cells in rows],
        outcomes=[tone_of(row) for row, _, _ in rows],
        notes=[clean(note) for note in notes],
        groups=groups,
        legend_of=[(each.name, each.tone, each.number) for each in drawn],
        shifts=shifts(drawn),
        data={"overlays": overlays(drawn) if drawn else {"runs": [], "charts": {}, "marks": []}, "speeds": speeds},
    )


def _title_of(row: IndexRow, others: Iterable[tuple[str, str, int]]) -> str:
    """The name of what was run, numbered where others have the same name."""
    steps = f", {row['planned_steps']:,} steps" if row["planned_steps"] else ""
    name = clean(
        f"{row['model'] or 'unknown model'} on {row['num_devices'] or '?'} × {row['device'] or 'device'}{steps}"
    )
    alike = sum(other == name or other.startswith(f"{name} (") for other, _, _ in others)
    return f"{name} ({alike + 1})" if alike else name


def tone_of(row: IndexRow) -> str:
    """The tone that decides the colour of an outcome."""
    outcome = row["outcome"]
    if outcome in ("pass", "running"):
        return str(outcome)
    return "inconclusive" if outcome in ("inconclusive", "interrupted", "not_finished", "not_judged") else "fail"


def _newest(rows: Sequence[Listed]) -> list[Drawn]:
    found: list[Drawn] = []
    for row, run_id, _ in rows:
        if len(found) == MOST_OVERLAID:
            break
        try:
            run = load(Path(str(row["directory"])))
        except InputError:
            continue
        if run.steps:
            name = f"{clean(Path(str(row['directory'])).name)} ({run_id[:4]})"
            found.append(Drawn(name, run, TONES[len(found)]))
    return found


def _speeds(rows: Sequence[Listed]) -> tuple[list[dict[str, Any]], list[tuple[str, str, int]]]:
    """(the runs with a speed, the oldest first, each with its interval; the configurations with their colours)."""
    tones: dict[Any, tuple[str, str, int]] = {}
    speeds: list[dict[str, Any]] = []
    kept = {str(row["directory"]) for row in without_copies(row for row, _, _ in rows)}
    once = [listed for listed in rows if str(listed[0]["directory"]) in kept]
    for row, run_id, cells in reversed(once[:MAX_POINTS]):
        rate, step = row["tokens_per_second_per_device"], row["step_seconds"]
        if not isinstance(rate, (int, float)) or rate <= 0:
            continue
        key = configuration_of(row)
        if key not in tones:
            tones[key] = (
                _title_of(row, tones.values()),
                TONES[len(tones) % len(TONES)],
                min(len(tones) // len(TONES), 3),
            )
        ends = [row["step_seconds_low"], row["step_seconds_high"]]
        low = high = float(rate)
        if isinstance(step, (int, float)) and all(isinstance(end, (int, float)) and end > 0 for end in ends):
            high, low = (rate * step / float(end or step) for end in ends)
        speeds.append({"rate": rate, "low": low, "high": high, "tone": tones[key][1], "date": cells[1], "run": run_id})
    return speeds, list(tones.values())
