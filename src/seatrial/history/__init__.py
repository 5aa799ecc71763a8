"""Runs beside each other: an index over run directories, and the comparison of two of them.

The run directories are the truth. The index only remembers what was read there, and can be rebuilt at any time.
"""

from __future__ import annotations

from seatrial.errors import InputError
from seatrial.history.compare import Comparison, compare
from seatrial.history.gate import Gate, judge_slowdown
from seatrial.history.listing import list_runs, locate
from seatrial.history.loaded import LoadedRun, load
from seatrial.history.rendering import render

__all__ = [
    "Comparison",
    "Gate",
    "LoadedRun",
    "compare",
    "compare_runs",
    "judge_slowdown",
    "list_runs",
    "load",
    "locate",
]


def compare_runs(
    a: str, b: str, *, limit: float | None = None, anyway: bool = False, output: str = "text"
) -> tuple[str, int]:
    """The comparison of two runs as "text", "json" or "markdown", and the exit code: the gate's, or 0 without a gate.

    `a` and `b` are run directories, or names or ids of the history. Raises InputError where a run cannot be found or
    read, where they are one and the same, and where the two do different work, unless `anyway`.
    """
    one, other = locate(a), locate(b)
    if one.resolve() == other.resolve():
        why = "it is compared with itself, and would never be slower"
        raise InputError.single("same-run", b, why, "name two runs")
    comparison = compare(load(one), load(other), anyway=anyway)
    gate = None if limit is None else judge_slowdown(comparison, limit, anyway=anyway)
    return render(comparison, gate, output), gate.exit_code if gate else 0
