"""The time to train of several runs of one training, as MLPerf Training scores it."""

from __future__ import annotations

from collections.abc import Sequence

FEWEST_RUNS = 3  # of which one is between the fastest and the slowest


def olympic_mean(times: Sequence[float | None]) -> float | None:
    """The mean without the fastest and the slowest; None is the time of a run that did not reach its target.

    Such a run counts as the slowest. None where there are fewer than three runs, or several that did not reach theirs.
    https://github.com/mlcommons/training_policies/blob/master/training_rules.adoc, "Run results"
    """
    known = sorted(time for time in times if time is not None)
    missing = len(times) - len(known)
    if len(times) < FEWEST_RUNS or missing > 1:
        return None
    counted = known[1 : len(times) - 1]
    return sum(counted) / len(counted)
