"""Rows and figures as the texts that the page shows: untrusted text made inert, numbers with digits that fit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.history.history_page import tone_of
from seatrial.history.summary import IndexRow
from seatrial.launch.live import clock
from seatrial.report.figures import TITLES
from seatrial.report.gather import clean
from seatrial.serve.table import Change, Table, Trend, group_of, key_of
from seatrial.verdict import show, show_beside

LONG_HEADLINE = 300
LONG_DEVICE = 80
NOTHING = "–"
SPARK_WIDTH, SPARK_HEIGHT, SPARK_POINTS = 120, 22, 60
TITLE_OF: Mapping[str, str] = {str(outcome): title for outcome, title in TITLES.items()}


def title_of(outcome: str) -> str:
    """An outcome, or a state without one, as a word for a person."""
    return TITLE_OF.get(outcome) or outcome.replace("_", " ")


def figure(value: Any, unit: str = "") -> str:
    """A number, or what stands in its place."""
    return NOTHING if value is None else show(value, unit)


def share(value: Any) -> str:
    """A fraction as a percentage with one decimal."""
    return f"{value:.1%}" if isinstance(value, (int, float)) else figure(value)


def date(seconds: Any, form: str = "%Y-%m-%d %H:%M") -> str:
    """A time of the server's own zone."""
    return time.strftime(form, time.localtime(seconds)) if isinstance(seconds, (int, float)) else NOTHING


def took(seconds: Any) -> str:
    """A duration: 4 s, 12 min, 3 h 05."""
    if not isinstance(seconds, (int, float)):
        return NOTHING
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02}" if minutes < 100 * 60 else f"{minutes / 1440:.1f} d"


def name_of(row: IndexRow) -> str:
    """The name of a run's directory."""
    return clean(Path(str(row["directory"])).name)


def devices_of(row: IndexRow) -> str:
    """The number of devices and their kind."""
    device = clean(str(row["device"])) if row["device"] else "device"
    device = device if len(device) <= LONG_DEVICE else f"{device[:LONG_DEVICE]}…"
    return f"{row['num_devices'] if row['num_devices'] is not None else '?'} × {device}"


def run_of(key: str, row: IndexRow) -> dict[str, Any]:
    """A run that is over, for its row."""
    headline = clean(str(row["note"] or ""))
    return {
        "key": key, "group": group_of(row), "name": name_of(row), "directory": clean(str(row["directory"])),
        "outcome": str(row["outcome"]), "title": title_of(str(row["outcome"])), "tone": tone_of(row),
        "headline": headline if len(headline) <= LONG_HEADLINE else f"{headline[:LONG_HEADLINE]}…",
        "started": date(row["started_at"]), "took": took(row["wall_seconds"]), "attempts": figure(row["attempts"]),
        "model": clean(str(row["model"] or NOTHING)), "rehearsal": clean(str(row["rehearsal"] or "")),
        "devices": devices_of(row) if row["device"] or row["num_devices"] else NOTHING,
        "steps": figure(row["num_steps"]) + (f" of {figure(row['planned_steps'])}" if row["planned_steps"] else ""),
        "step": figure(row["step_seconds"]), "rate": figure(row["tokens_per_second_per_device"]),
        "mfu": share(row["mfu"]), "loss": figure(row["last_loss"]),
    }  # fmt: skip


def live_of(figures: Mapping[str, Any] | None) -> dict[str, Any]:
    """The cells of a run that goes on, as texts; "at" and "event_at" are seconds since the epoch."""
    if figures is None:  # its first look is to come
        blank = dict.fromkeys(("steps", "loss", "seconds", "rate", "mfu", "eta", "nodes", "event"), NOTHING)
        return {**blank, "state": "running", "tone": "", "step": 0, "planned": 1, "at": None, "event_at": None}
    planned, step = figures["planned"], figures["step"]
    missing = figures["nodes"] - figures["nodes_up"] if figures["state"] == "running" and figures["nodes_up"] else 0
    attempt = f", attempt {figures['attempt']}" if figures["attempt"] > 1 else ""
    return {
        "state": clean(figures["phase"] or figures["state"]) + attempt,
        "tone": "fail" if figures["is_trouble"] or missing > 0 else "",
        "steps": f"{step:,} of {planned:,}" if planned else f"{step:,}",
        "step": step, "planned": planned or max(step, 1),
        "loss": figure(figures["loss"]), "seconds": figure(figures["seconds"]),
        "rate": figure(figures["tokens_per_second_per_device"]), "mfu": share(figures["mfu"]),
        "eta": NOTHING if figures["eta_seconds"] is None else clock(min(figures["eta_seconds"], 1e8)),
        "nodes": f"{figures['nodes_up']} of {figures['nodes']}" if figures["nodes"] else NOTHING,
        "event": clean(figures["event"]) or NOTHING, "at": figures["step_at"], "event_at": figures["event_at"],
    }  # fmt: skip


def trend_of(table: Table, trend: Trend) -> dict[str, Any]:
    """A configuration, for its row and for the head of its page."""
    row = trend.last
    changes = [change_of(table, change) for change in table.changes(trend)]
    passed = trend.outcomes["pass"]
    over = sum(count for outcome, count in trend.outcomes.items() if outcome != "running")
    return {
        "key": trend.key, "model": clean(str(row["model"] or "unknown model")),
        "rehearsal": clean(str(row["rehearsal"] or "")),
        "devices": devices_of(row), "precision": clean(str(row["precision"] or NOTHING)),
        "batch": f"{figure(row['sequence_length'])} × {figure(row['global_batch_size'])}",
        "planned": figure(row["planned_steps"]), "runs": len(trend.runs), "timed": len(trend.timed),
        "passed": f"{passed:,} of {over:,}" if over else NOTHING,
        "last": date(row["started_at"]), "last_key": key_of(str(row["directory"])),
        "outcome": title_of(str(row["outcome"])), "tone": tone_of(row),
        "now": figure(trend.levels[-1].seconds) if trend.levels else NOTHING,
        "changes": changes, "change": changes[-1] if changes else None,
        "spark": _spark(table, trend), "name": clean(str(row["name"] or "")),
    }  # fmt: skip


def change_of(table: Table, change: Change) -> dict[str, Any]:
    """A change of a configuration's speed in words."""
    row = table.rows[change.key]
    before, after = show_beside(change.before, change.after)
    return {
        "key": change.key, "name": name_of(row), "since": date(row["started_at"], "%Y-%m-%d"),
        "by": f"{change.change:+.1%}".replace("-", "−"),
        "word": "slower" if change.change > 0 else "faster", "tone": "fail" if change.change > 0 else "pass",
        "size": f"{abs(change.change):.1%}", "before": before, "after": after,
        "runs": change.runs, "place": change.place,
        "versions": [clean(each) for each in change.versions],
    }  # fmt: skip


def _spark(table: Table, trend: Trend) -> dict[str, Any] | None:
    """The newest step times and their levels as lines in a box of SPARK_WIDTH × SPARK_HEIGHT."""
    first = max(0, len(trend.timed) - SPARK_POINTS)
    seconds = [table.seconds(key) or 0.0 for key in trend.timed[first:]]
    if len(seconds) < 2:
        return None
    ordered = sorted(seconds)
    middle, shown = ordered[len(ordered) // 2], [level for level in trend.levels if level.end > first]
    ends = [ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10], *(level.seconds for level in shown)]
    room = max(1.2 * (max(ends) - min(ends)), 0.02 * middle)  # an odd run must not flatten all others
    low = (max(ends) + min(ends) - room) / 2

    def at(place: float, value: float) -> str:
        x = 2 + (SPARK_WIDTH - 4) * place / (len(seconds) - 1)
        y = 2 + (SPARK_HEIGHT - 4) * (1 - min(max((value - low) / room, 0.0), 1.0))
        return f"{x:.1f},{y:.1f}"

    levels = [
        f"M{at(max(level.first - first, 0), level.seconds)}L{at(level.end - 1 - first, level.seconds)}"
        for level in shown
    ]
    points = " ".join(at(place, value) for place, value in enumerate(seconds))
    return {"points": points, "levels": "".join(levels), "width": SPARK_WIDTH, "height": SPARK_HEIGHT}
