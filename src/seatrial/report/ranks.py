"""Puts the step times of all ranks on a bounded grid, rank × step: each cell keeps the worst of what it stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seatrial.metrics import Performance
from seatrial.metrics.performance import Clock, clocks
from seatrial.metrics.record import Record, Records
from seatrial.metrics.setup import setup_of
from seatrial.recording import median
from seatrial.report.section import Section, without_empty_columns
from seatrial.spec import RunSpec
from seatrial.verdict import show, show_beside

MAX_ROWS, MAX_COLUMNS = 96, 200
MOST_NAMED = 10
LEAST_SCALE, MOST_SCALE = 1.1, 2.0  # times the median: where the colours end


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A rank by its median: `seconds` is None where only the proportions of the times are known."""

    rank: int
    host: str
    seconds: float | None
    slower_by: float


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """The grid: `ratio` (rows × columns) is the longest time of a cell over the median of all ranks; NaN without any.

    `rank` and `step` (rows × columns) say whose and which it is, `rows` are the first ranks of the rows and `columns`
    the first steps of the columns, `last_rank` and `last_step` the ends. `typical` is the median in seconds, None where
    only proportions are known; `origin` says what the times are taken from, "" for the log's own. The `slowest` ranks
    come in order.
    """

    num_ranks: int
    num_steps: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    last_rank: int
    last_step: int
    ratio: NDArray[np.float64]
    rank: NDArray[np.int64]
    step: NDArray[np.int64]
    typical: float | None
    scale: float
    origin: str
    slowest: tuple[SlowRank, ...]


def rank_times(records: Records, spec: RunSpec | None, performance: Performance) -> RankTimes | None:
    """The grid by the first of the log's clocks that two ranks have; None where there are no two."""
    for clock in clocks(setup_of(records.main.started, spec)):
        found = [(record, *_times(record, clock)) for record in records.by_process]
        found = [each for each in found if len(each[1])]
        if len(found) > 1:
            return _grid(found, clock, performance)
    return None


_Timed = tuple[Record, NDArray[np.int64], NDArray[np.float64]]


def _times(record: Record, clock: Clock) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps and times of a rank, both of (num_timed,)."""
    times = clock.times_of(record.steps)
    good = np.isfinite(times)
    return record.steps.number_column[good].astype(np.int64), times[good]


def _grid(found: Sequence[_Timed], clock: Clock, performance: Performance) -> RankTimes:
    medians = _medians(found, performance)
    typical = sorted(medians)[(len(medians) - 1) // 2]
    all_steps = np.unique(np.concatenate([steps for _, steps, _ in found]))
    num_rows, num_columns = min(MAX_ROWS, len(found)), min(MAX_COLUMNS, len(all_steps))
    ratio = np.full((num_rows, num_columns), math.nan)
    whose, which = (np.zeros((num_rows, num_columns), dtype=np.int64) for _ in range(2))
    for number, (record, steps, times) in enumerate(found):
        row = number * num_rows // len(found)
        column = np.searchsorted(all_steps, steps) * num_columns // len(all_steps)
        order = np.lexsort((times, column))  # the longest of each column comes last
        last = order[np.flatnonzero(np.diff(column[order], append=-1))]
        place, longest = column[last], times[last] / typical
        worse = ~(ratio[row, place] >= longest)
        ratio[row, place[worse]] = longest[worse]
        whose[row, place[worse]], which[row, place[worse]] = record.process, steps[last][worse]
    ranks = [record.process for record, _, _ in found]
    slow = sorted(zip(medians, found, strict=True), key=lambda each: -each[0])[:MOST_NAMED]
    return RankTimes(
        num_ranks=len(found),
        num_steps=len(all_steps),
        rows=tuple(ranks[math.ceil(row * len(found) / num_rows)] for row in range(num_rows)),
        columns=tuple(int(all_steps[math.ceil(n * len(all_steps) / num_columns)]) for n in range(num_columns)),
        last_rank=ranks[-1],
        last_step=int(all_steps[-1]),
        ratio=ratio,
        rank=whose,
        step=which,
        typical=typical if clock.in_seconds else None,
        scale=_scale(ratio, which, performance),
        origin=clock.origin,
        slowest=tuple(
            SlowRank(
                rank=record.process,
                host=record.started.host if record.started else "",
                seconds=median if clock.in_seconds else None,
                slower_by=median / typical - 1,
            )
            for median, (record, _, _) in slow
        ),
    )


def _medians(found: Sequence[_Timed], performance: Performance) -> list[float]:
    """Of each rank, over the steady window, or over all of its steps where it has none there."""
    window = performance.step_times
    medians = []
    for _, steps, times in found:
        inside = times
        if window is not None:
            inside = times[(steps >= window.first_step) & (steps <= window.last_step)]
        medians.append(median(inside if len(inside) else times))
    return medians


def _scale(ratio: NDArray[np.float64], step: NDArray[np.int64], performance: Performance) -> float:
    """The ratio at which the colours end: a warm-up does not bleach the rest."""
    window = performance.step_times
    shown = ratio[np.isfinite(ratio)]
    if window is not None:
        steady = np.isfinite(ratio) & (step >= window.first_step) & (step <= window.last_step)
        shown = ratio[steady] if steady.any() else shown
    return float(min(MOST_SCALE, max(LEAST_SCALE, np.percentile(shown, 99.5)))) if len(shown) else LEAST_SCALE


def summary(times: RankTimes) -> str:
    """The slowest rank, in a few words."""
    first = times.slowest[0]
    return f"slowest: rank {first.rank}, {first.slower_by:+.1%}" if first.slower_by > 0 else "no rank is slower"


def table(times: RankTimes) -> Section:
    """The slowest ranks, and what their times are compared with."""
    told = tuple(show_beside(*(slow.seconds for slow in times.slowest)))
    rows = tuple(
        (f"rank {slow.rank}", slow.host, "" if slow.seconds is None else seconds, f"{slow.slower_by:+.1%}")
        for slow, seconds in zip(times.slowest, told, strict=True)
    )
    columns, shown = without_empty_columns(("Slowest", "Host", "Step, s", "Vs. median"), rows)
    typical = "" if times.typical is None else f", {show(times.typical, 's')}"
    taken = f" Times are taken {times.origin}." if times.origin else ""
    cells = "" if times.num_ranks <= MAX_ROWS and times.num_steps <= MAX_COLUMNS else (
        f" {times.num_ranks:,} ranks and {times.num_steps:,} steps are more than can be drawn: each cell shows the "
        "longest of its times."
    )  # fmt: skip
    note = f"Compared with the median rank's median step{typical}, in the steady window.{taken}{cells}"
    return Section(
        key="slowest", title="Ranks", columns=columns, rows=shown, numbers=("Step, s", "Vs. median"), notes=(note,)
    )


def drawn(times: RankTimes) -> dict[str, Any]:
    """The grid as plain data: ratios per mille, null for none; whose and which as distances from row and column."""
    rows, columns = np.array(times.rows), np.array(times.columns)
    missing = ~np.isfinite(times.ratio)

    def plain(values: NDArray[Any]) -> list[list[int | None]]:
        return [[None if gap else int(v) for v, gap in zip(*row, strict=True)] for row in zip(values, missing)]  # noqa: B905

    thinned = times.num_ranks > len(rows) or times.num_steps > len(columns)
    return {
        "rows": list(times.rows),
        "columns": list(times.columns),
        "last_rank": times.last_rank,
        "last_step": times.last_step,
        "permille": plain(np.where(missing, 0, np.round(1000 * np.where(missing, 0, times.ratio)))),
        "rank": plain(times.rank - rows[:, None]) if thinned else None,
        "step": plain(times.step - columns[None, :]) if thinned else None,
        "typical": times.typical,
        "scale": round(times.scale, 3),
        "slowest": [slow.rank for slow in times.slowest if slow.slower_by > 0],
    }
