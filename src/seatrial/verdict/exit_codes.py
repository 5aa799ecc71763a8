"""The outcomes of a verdict, each with its exit code; what ends a command before a verdict has its own in `errors`."""

from __future__ import annotations

from typing import Literal

Outcome = Literal[
    "pass", "fail", "teardown_failed", "inconclusive", "died", "no_progress", "could_not_run", "interrupted"
]

EXIT_CODES: dict[Outcome, int] = {
    "pass": 0,
    "fail": 1,
    "teardown_failed": 1,
    "could_not_run": 3,
    "died": 4,
    "no_progress": 5,
    "inconclusive": 6,
    "interrupted": 130,
}
WORST_OUTCOME_FIRST: tuple[Outcome, ...] = (
    "fail", "died", "no_progress", "could_not_run", "teardown_failed", "interrupted", "inconclusive", "pass",
)  # fmt: skip
