"""The runs in the server's memory: a row each, the figures of those that go on, and their configurations."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from seatrial.history.summary import STATES, IndexRow, configuration_of, real, versions_of, without_copies
from seatrial.history.trend import Level, change, levels_of
from seatrial.report.gather import clean

KEY_CHARACTERS = 16
MOST_IN_A_TREND = 500  # runs, the newest
MOST_VERSIONS = 4
MOST_CHARACTERS = 200  # of a part of an address
PAGE = 100
FILTERS = ("outcome", "model", "device", "root")
# Name in the address → column; by what a table may be sorted, and whether the largest comes first.
SORTS: Mapping[str, tuple[str, bool]] = {
    "started": ("started_at", True), "took": ("wall_seconds", True), "attempts": ("attempts", True),
    "step": ("step_seconds", False), "rate": ("tokens_per_second_per_device", True), "mfu": ("mfu", True),
    "loss": ("last_loss", False), "run": ("name", False), "outcome": ("outcome", False),
}  # fmt: skip


def key_of(directory: str) -> str:
    """The name of a run in addresses: its id in the history, and more of it."""
    return hashlib.sha256(os.fsencode(directory)).hexdigest()[:KEY_CHARACTERS]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The runs that are asked for: parts of an address. Empty: any."""

    q: str = ""
    outcome: str = ""
    model: str = ""
    device: str = ""
    root: str = ""
    sort: str = "started"
    reverse: bool = False
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Wanted:
        """Of the parts of an address, whatever they are."""
        texts = {name: query.get(name, "")[:MOST_CHARACTERS] for name in ("q", *FILTERS)}
        number = query.get("page", "1")
        page = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 1
        sort = query.get("sort", "started")
        return cls(
            **texts, sort=sort if sort in SORTS else "started", reverse=query.get("reverse") == "1", page=max(1, page)
        )

    def query(self, **changes: Any) -> dict[str, str]:
        """The parts of the address of these runs with changes, without those that are as usual."""
        usual = vars(Wanted())
        given = {**vars(self), "page": 1, **changes}
        return {
            name: "1" if value is True else str(value)
            for name, value in given.items()
            if value and value != usual[name]
        }

    @property
    def misses(self) -> Callable[[IndexRow, str], list[str]]:
        """Of a row and its root: the parts for which it is none of the runs that are asked for."""
        given = [(name, value) for name in FILTERS if (value := getattr(self, name))]
        words = self.q.lower()

        def found(row: IndexRow, root: str) -> list[str]:
            missed = [name for name, value in given if value != (root if name == "root" else row[name] or "")]
            return [*missed, "q"] if words and words not in f"{row['directory']} {row['name']}".lower() else missed

        return found


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The runs of one configuration: of one spec, on one number of one device; the oldest first.

    `timed` are those of them with a step time, copies left out, of which `levels` is made; at most MOST_IN_A_TREND, the
    newest.
    """

    key: str
    runs: tuple[str, ...]
    timed: tuple[str, ...]
    levels: tuple[Level, ...]
    last: IndexRow
    outcomes: Counter[str]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change from one level to the next, in the run with that key: a fraction, above 0 where it became slower."""

    key: str
    place: int
    before: float
    after: float
    change: float
    runs: int
    versions: tuple[str, ...]  # that differ between the run and the one before it


@dataclass
class Update:
    """The keys of the runs that a message has changed: their rows, or the figures of those that go on."""

    rows: set[str] = field(default_factory=set)
    live: set[str] = field(default_factory=set)


class Table:
    """All runs, by their keys."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [str(root) for root in roots]
        self.rows: dict[str, IndexRow] = {}
        self.live: dict[str, dict[str, Any]] = {}
        self.is_whole = False
        self._root_of: dict[str, str] = {}
        self._groups: dict[str, set[str]] = {}
        self._trends: dict[str, Trend] = {}
        self._sorted: list[str] | None = None

    def apply(self, message: Mapping[str, Any]) -> Update:
        """Takes in what the scanner has found."""
        update = Update()
        for row in message["rows"]:
            key = key_of(row["directory"])
            self._put(key, row | {name: clean(row[name]) for name in ("model", "device") if row[name]})
            update.rows.add(key)
        for directory in message["gone"]:
            key = key_of(directory)
            if self.rows.get(key):
                self._remove(key)
                self.live.pop(key, None)
                update.rows.add(key)
        for figures in message["live"]:
            key = key_of(figures["directory"])
            if self.live.get(key) != figures and key in self.rows and self.rows[key]["outcome"] == "running":
                self.live[key] = figures
                update.live.add(key)
        self.is_whole = message["is_whole"]
        return update

    def _put(self, key: str, row: IndexRow) -> None:
        self._remove(key)
        self.rows[key] = row
        if row["outcome"] != "running":
            self.live.pop(key, None)
        directory = str(row["directory"])
        self._root_of[key] = next(
            (root for root in self._roots if directory == root or directory.startswith(root.rstrip("/") + "/")), ""
        )
        if (group := group_of(row)) is not None:
            self._groups.setdefault(group, set()).add(key)
            self._trends.pop(group, None)

    def _remove(self, key: str) -> None:
        row = self.rows.pop(key, None)
        self._sorted = None
        if row is not None and (group := group_of(row)) is not None:
            self._groups[group].discard(key)
            self._trends.pop(group, None)
            if not self._groups[group]:
                self._groups.pop(group)

    # --- runs ---

    def by_time(self) -> list[str]:
        """All keys, the newest first."""
        if self._sorted is None:
            self._sorted = sorted(self.rows, key=lambda key: _order(self.rows[key]["started_at"], True))
        return self._sorted

    def find(self, wanted: Wanted) -> list[str]:
        """The keys of the runs that are asked for, in the order that is asked for."""
        misses = wanted.misses
        found = [key for key in self.by_time() if not misses(self.rows[key], self._root_of[key])]
        if wanted.sort == "started":
            return found[::-1] if wanted.reverse else found
        column, largest = SORTS[wanted.sort]
        return sorted(found, key=lambda key: _order(self.rows[key][column], largest != wanted.reverse))

    def counts(self, wanted: Wanted) -> dict[str, dict[str, int]]:
        """For each of FILTERS: how many runs there are of each outcome (model, …), if that were not asked for."""
        misses, found = wanted.misses, {name: Counter[str]() for name in FILTERS}
        for key, row in self.rows.items():
            root = self._root_of[key]
            missed = misses(row, root)
            for name in FILTERS if not missed else missed if len(missed) == 1 and missed != ["q"] else ():
                found[name][root if name == "root" else str(row[name] or "")] += 1
        order = {state: place for place, state in enumerate(STATES)}
        return {
            name: dict(sorted(each.items(), key=lambda item: (order.get(item[0], 0), item[0])))
            for name, each in found.items()
        }

    def alike(self, keys: Iterable[str], most: int = 60) -> list[IndexRow]:
        """The newest runs of the configurations of some."""
        found: dict[str, IndexRow] = {}
        for key in keys:
            group = group_of(self.rows[key])
            members = sorted(self._groups.get(group or "", ()), key=self.start, reverse=True)[:most]
            found |= {member: self.rows[member] for member in (key, *members)}
        return list(found.values())

    def start(self, key: str) -> float:
        """The start time of a run, for an order; 0 where it is not known."""
        return real(self.rows[key]["started_at"]) or 0.0

    # --- configurations ---

    def trends(self) -> list[Trend]:
        """One per configuration; that with the newest run first."""
        found = [self.trend(group) for group in list(self._groups)]
        return sorted((t for t in found if t), key=lambda trend: -self.start(trend.runs[-1]))

    def trend(self, group: str) -> Trend | None:
        """That of a configuration, if there is one."""
        if group not in self._groups:
            return None
        if group not in self._trends:
            runs = sorted(self._groups[group], key=self.start)
            once = [key_of(str(row["directory"])) for row in without_copies(self.rows[key] for key in runs)]
            timed = [key for key in once if (seconds := self.seconds(key)) is not None and seconds > 0]
            timed = timed[-MOST_IN_A_TREND:]
            self._trends[group] = Trend(
                key=group,
                runs=tuple(runs),
                timed=tuple(timed),
                levels=tuple(levels_of([self.seconds(key) or 0.0 for key in timed])),
                last=self.rows[runs[-1]],
                outcomes=Counter(str(self.rows[key]["outcome"]) for key in runs),
            )
        return self._trends[group]

    def seconds(self, key: str) -> float | None:
        """The step time of a run that is over."""
        row = self.rows[key]
        return None if row["outcome"] in ("running", "unreadable") else real(row["step_seconds"])

    def changes(self, trend: Trend) -> list[Change]:
        """The changes of a configuration's speed, the oldest first."""
        found = []
        for before, after in pairwise(trend.levels):
            one, other = (self.rows[trend.timed[place]] for place in (after.first - 1, after.first))
            found.append(
                Change(
                    key=trend.timed[after.first], place=after.first, before=before.seconds, after=after.seconds,
                    change=change(before, after), runs=after.runs, versions=_versions(one, other),
                )
            )  # fmt: skip
        return found


def group_of(row: IndexRow) -> str | None:
    """The configuration of a run, as a name for addresses; None where it is not known."""
    if row["fingerprint"] is None:
        return None
    parts = json.dumps(configuration_of(row))
    return hashlib.sha256(parts.encode()).hexdigest()[:KEY_CHARACTERS]


def _versions(one: IndexRow, other: IndexRow) -> tuple[str, ...]:
    a, b = versions_of(one), versions_of(other)
    found = [
        f"{name} {a.get(name, 'none')} → {b.get(name, 'none')}"
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]
    return tuple(found[:MOST_VERSIONS])


def _order(value: Any, largest: bool) -> tuple[int, float, str]:
    """A place in an order in which texts stand behind numbers, and what is not known behind all."""
    if isinstance(value, (int, float)):
        return 0, -value if largest else value, ""
    return (2, 0.0, "") if value is None else (1, 0.0, str(value).lower())
