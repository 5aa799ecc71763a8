"""A gate for continuous integration: B must not be slower than A by more than a limit.

It passes only where both runs passed their own verdicts, are known to be the same work, and the whole interval of the
difference lies within the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from seatrial.command import masked
from seatrial.history.compare import Comparison
from seatrial.history.loaded import LoadedRun

Status = Literal["pass", "fail", "inconclusive"]
EXIT_CODES: dict[Status, int] = {"pass": 0, "fail": 1, "inconclusive": 6}
FEWEST_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The gate's answer: `slowdown` is 1 − B's speed ÷ A's, with its interval."""

    status: Status
    limit: float
    slowdown: float | None
    low: float | None
    high: float | None
    reasons: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]


def judge_slowdown(comparison: Comparison, limit: float, *, anyway: bool = False) -> Gate:
    """The answer to whether B is slower than A by more than `limit`, a fraction of A's speed.

    `anyway` skips the check that both do the same work where their records do not say so.
    """
    speed = comparison.speed
    ratio = speed.speed if speed else None
    named = [*names_of("A", comparison.runs_a), *names_of("B", comparison.runs_b)]
    bad = [(name, outcome) for name, run in named if (outcome := _outcome(run))]
    against = [f"{name} is no baseline: {outcome}" for name, outcome in bad if name.startswith("A")]
    failed = [f"{name} did not pass its own verdict: {outcome}" for name, outcome in bad if name.startswith("B")]
    fails = any(run.verdict.outcome not in ("pass", "inconclusive") for run in comparison.runs_b)
    status: Status = "fail" if fails else "inconclusive"
    if speed is None or ratio is None:
        reasons = (*failed, *against, comparison.sentence)
        return Gate(status=status, limit=limit, slowdown=None, low=None, high=None, reasons=reasons)
    slowdown, low, high = 1 - ratio.value, 1 - ratio.high, 1 - ratio.low
    for name, run in named:
        against += _doubts(name, run, speed.metric)
    if comparison.unknown and not anyway:
        against.append(f"not known to be the same: {', '.join(comparison.unknown)}; --anyway skips this check")
    measured = f"slow-down {slowdown:+.1%} [{low:+.1%}, {high:+.1%}], the limit is {limit:.1%}"
    if not failed and not against:
        status = "pass" if high <= limit else "fail" if low > limit else "inconclusive"
        if status == "inconclusive":
            measured += ", which lies within the interval; more steps or runs would tell"
    reasons = (*failed, *against, measured)
    return Gate(status=status, limit=limit, slowdown=slowdown, low=low, high=high, reasons=reasons)


def names_of(side: str, runs: Sequence[LoadedRun]) -> list[tuple[str, LoadedRun]]:
    """The runs of a side: "A", or "A1", "A2" of several."""
    return [(side if len(runs) == 1 else f"{side}{number}", run) for number, run in enumerate(runs, start=1)]


def _outcome(run: LoadedRun) -> str:
    """The outcome of a run's own verdict, with its headline; "" if it passed."""
    outcome = run.verdict.outcome
    return "" if outcome == "pass" else f"{outcome.replace('_', ' ')} ({masked(run.verdict.headline)})"


def _doubts(name: str, run: LoadedRun, metric: str) -> list[str]:
    """The reasons why a run's speed is not good enough for a gate."""
    times, estimate = run.metrics.performance.step_times, run.metrics.performance.estimates.get(metric)
    if times is None:
        return [f"{name}: no step has a time"]
    doubts = []
    if times.n < FEWEST_STEPS:
        doubts.append(f"{name}: {times.n} steady steps, and {FEWEST_STEPS} are needed")
    if not times.steady:
        doubts.append(f"{name}: the step time never became steady")
    if estimate is not None and estimate.low == estimate.high and len(run.steady_seconds) == 0:
        doubts.append(f"{name}: its speed has no interval")
    return doubts
