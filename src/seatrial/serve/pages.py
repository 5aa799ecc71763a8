"""The pages as HTML, from the table in memory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from seatrial.history.history_page import tone_of
from seatrial.history.summary import COLUMNS
from seatrial.history.trend import FEWEST
from seatrial.report.gather import clean
from seatrial.report.html import templates
from seatrial.serve import views
from seatrial.serve.table import MOST_IN_A_TREND, PAGE, SORTS, Table, Wanted

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_LIVE = 100
MOST_OF_A_CONFIGURATION = 200
UPLOT = "uplot-1.6.32"

# Every file that the server gives out, by its name: the package that has it, and its type.
ASSETS: Mapping[str, tuple[str, str]] = {
    "report.css": ("seatrial.report", "text/css"), "serve.css": ("seatrial.serve", "text/css"),
    f"{UPLOT}.min.css": ("seatrial.report", "text/css"), f"{UPLOT}.iife.min.js": ("seatrial.report", "text/javascript"),
    "drawing.js": ("seatrial.report", "text/javascript"), "serve.js": ("seatrial.serve", "text/javascript"),
    "configuration.js": ("seatrial.serve", "text/javascript"), "icon.svg": ("seatrial.serve", "image/svg+xml"),
}  # fmt: skip


@cache
def asset(name: str) -> bytes:
    """A file of ASSETS."""
    return (resources.files(ASSETS[name][0]) / "assets" / name).read_bytes()


@cache
def address_of(name: str) -> str:
    """The address of a file of ASSETS: another address for another content, so that browsers may keep it."""
    return f"/static/{name}?v={hashlib.sha256(asset(name)).hexdigest()[:12]}"


def ago(seconds: float | None) -> str:
    """The time that has passed since then, as the page's script says it."""
    if seconds is None:
        return views.NOTHING
    since = max(0.0, time.time() - seconds)
    if since < 100:
        return "now" if since < 0.95 else f"{since:.0f} s ago"
    if since < 6000:
        return f"{since / 60:.0f} min ago"
    return f"{since / 3600:.0f} h ago" if since < 172_800 else f"{since / 86_400:.0f} d ago"


@cache
def _environment() -> Environment:
    made = templates("seatrial.serve")
    made.filters |= {"clean": clean, "title_of": views.title_of, "ago": ago}
    made.globals |= {"asset": address_of}
    return made


class Pages:
    """The pages of a server over these roots."""

    def __init__(self, table: Table, roots: Sequence[Path]) -> None:
        self._table = table
        self._roots = [clean(str(root)) for root in roots]

    def runs(self, query: Mapping[str, str]) -> str:
        """Those that go on, then the others, page by page."""
        table, wanted = self._table, Wanted.of(query)
        found = table.find(wanted)
        going = [key for key in found if table.rows[key]["outcome"] == "running"]
        over = [key for key in found if table.rows[key]["outcome"] != "running"]
        pages = max(1, -(-len(over) // PAGE))
        first = (min(wanted.page, pages) - 1) * PAGE
        counts = table.counts(wanted)
        return self._page(
            "runs.html", "runs", title="Runs",
            wanted=wanted, here_with=lambda **changes: f"/?{urlencode(wanted.query(**changes))}".rstrip("?"),
            outcomes=counts["outcome"], tones={name: tone_of(_with_outcome(name)) for name in counts["outcome"]},
            models=counts["model"], devices=counts["device"], folders=counts["root"],
            live=[
                (views.run_of(key, table.rows[key]), views.live_of(table.live.get(key))) for key in going[:MOST_LIVE]
            ],
            more_live=max(0, len(going) - MOST_LIVE),
            runs=[views.run_of(key, table.rows[key]) for key in over[first : first + PAGE]],
            first=first + 1, last=min(first + PAGE, len(over)), total=len(over), pages=pages,
            ascending={name for name, (_, largest) in SORTS.items() if not largest},
            nothing=self._nothing(wanted, going), is_whole=table.is_whole,
        )  # fmt: skip

    def _nothing(self, wanted: Wanted, going: Sequence[str]) -> str:
        if not self._table.is_whole:
            return "The folders are being read."
        if self._table.rows:
            return "No other run." if going else "No run fits." if wanted.query() else "No run is over."
        return "No run is there yet. One that is started below these folders appears here by itself."

    def configurations(self) -> str:
        """All of them, with the last change of each."""
        trends = [views.trend_of(self._table, trend) for trend in self._table.trends()]
        return self._page(
            "configurations.html", "configurations", title="Configurations", trends=trends, fewest=2 * FEWEST
        )

    def configuration(self, key: str) -> str | None:
        """The step time of one from run to run, its changes and its runs; None where there is none with that key."""
        table, trend = self._table, self._table.trend(key)
        if trend is None:
            return None
        shown = views.trend_of(table, trend)
        for change in shown["changes"]:
            change["previous"] = trend.timed[change["place"] - 1]
        points = [self._point(each) for each in trend.timed]
        data = {"points": points, "levels": [vars(level) for level in trend.levels], "changes": shown["changes"]}
        newest = list(reversed(trend.runs))[:MOST_OF_A_CONFIGURATION]
        return self._page(
            "configuration.html", "configurations", title=f"{shown['model']} on {shown['devices']}",
            styles=("report.css", f"{UPLOT}.min.css", "serve.css"),
            scripts=(f"{UPLOT}.iife.min.js", "drawing.js", "serve.js", "configuration.js"),
            trend={**shown, "runs": len(trend.runs)}, data=data, most=MOST_IN_A_TREND,
            runs=[views.run_of(each, table.rows[each]) for each in newest],
        )  # fmt: skip

    def _point(self, key: str) -> dict[str, Any]:
        row = self._table.rows[key]
        seconds = self._table.seconds(key)
        ends = [row["step_seconds_low"], row["step_seconds_high"]]
        low, high = (end if isinstance(end, (int, float)) else seconds for end in ends)
        return {
            "key": key, "name": views.name_of(row), "date": views.date(row["started_at"]), "seconds": seconds,
            "low": low, "high": high, "tone": tone_of(row), "outcome": views.title_of(str(row["outcome"])),
        }  # fmt: skip

    def message(self, title: str, why: str, fix: str = "", more: tuple[str, str] | None = None) -> str:
        """A page of a few sentences; `more` is a link, its text and its address."""
        return self._page("message.html", "", title=title, why=clean(why), fix=clean(fix), more=more)

    def _page(
        self, template: str, here: str, *, styles: Sequence[str] = ("report.css", "serve.css"),
        scripts: Sequence[str] = ("serve.js",), **values: Any,
    ) -> str:  # fmt: skip
        made, zone = _environment().get_template(template), time.strftime("%Z")
        return made.render(here=here, roots=self._roots, zone=zone, styles=styles, scripts=scripts, **values)


def _with_outcome(outcome: str) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {"outcome": outcome}
