"""Runs beside each other: an index over run directories, and the comparison of some with others.

The run directories are the truth. The index only remembers what was read there, and can be rebuilt at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.errors import InputError
from seatrial.history.compare import Comparison, compare
from seatrial.history.earlier import earlier_runs, require_no_copies, step_seconds_of_others
from seatrial.history.formats import FORMATS
from seatrial.history.gate import Gate, judge_slowdown
from seatrial.history.listing import find_runs, list_runs, locate
from seatrial.history.loaded import LoadedRun, load
from seatrial.report import html

__all__ = [
    "Comparison",
    "Gate",
    "LoadedRun",
    "compare",
    "compare_named",
    "compare_runs",
    "find_runs",
    "judge_slowdown",
    "list_runs",
    "load",
    "locate",
    "sides",
]


def sides(runs: Sequence[str], others: Sequence[str], *, history: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The baseline runs, and those that are compared with them. Raises InputError where that is not clear."""
    if history and others:
        raise InputError.single("two-baselines", "--history", "--with names runs too", "use one of the two")
    if history:
        return (), tuple(runs)
    if others:
        return tuple(runs), tuple(others)
    if len(runs) != 2:
        why = f"{len(runs)} run{'s are' if len(runs) > 1 else ' is'} named, and nothing says what to compare with what"
        fix = "name two, or A1 A2 --with B1 B2, or compare with earlier runs: --history"
        raise InputError.single("sides", "compare", why, fix)
    return (runs[0],), (runs[1],)


def compare_runs(
    a: str | Sequence[str],
    b: str | Sequence[str],
    *,
    limit: float | None = None,
    anyway: bool = False,
    output: str = "text",
) -> tuple[str, int]:
    """The comparison of b with a, a run or several each, in one of `FORMATS`, and the exit code.

    "html" writes comparison.html here and gives a line that names it. The exit code is the gate's, or 0 without a gate.
    Raises as `compare_named` does.
    """
    comparison = compare_named(a, b, anyway=anyway)
    gate = None if limit is None else judge_slowdown(comparison, limit, anyway=anyway)
    text = FORMATS[output](comparison, gate)
    return html.saved("comparison.html", text) if output == "html" else text, gate.exit_code if gate else 0


def compare_named(a: str | Sequence[str], b: str | Sequence[str], *, anyway: bool = False) -> Comparison:
    """The comparison of b with a, a run or several each.

    A run is a directory, or a name or an id of the history; without any in `a`, the earlier runs of b's configuration
    are. Raises InputError where a run cannot be found or read, where one is named twice, and, unless `anyway`, where
    one is a copy of another or they do different work.
    """
    other = [locate(name) for name in ([b] if isinstance(b, str) else b)]
    if not other:
        raise InputError.single("no-run", "b", "there is no run to compare", "name one or more")
    one = [locate(name) for name in ([a] if isinstance(a, str) else a)] or earlier_runs(other)
    _require_different(one, other)
    if not anyway:
        require_no_copies([*one, *other])
    return compare(
        [load(run) for run in one], [load(run) for run in other], anyway=anyway,
        others=step_seconds_of_others([*one, *other]),
    )  # fmt: skip


def _require_different(a: Sequence[Path], b: Sequence[Path]) -> None:
    found: dict[Path, str] = {}
    for side, runs in (("A", a), ("B", b)):
        for run in runs:
            before = found.setdefault(run.resolve(), side)
            if before != side:
                why = "it is compared with itself, and would never be slower"
                raise InputError.single("same-run", str(run), why, "name two runs")
        if len({run.resolve() for run in runs}) < len(runs):
            twice = next(run for run in runs if [other.resolve() for other in runs].count(run.resolve()) > 1)
            raise InputError.single("same-run", str(twice), "it is named twice on one side", "name each run once")
