"""Metrics × targets → Verdict: did the run do what it should?

Three axes of checks: *completion* (all of it ran, and ended by itself), *numerics* (the loss can be believed) and
*performance* (it met the targets of the configuration). A check that could not be measured never passes. Which way
is better comes from `spec.METRICS`, never from a name or a sign.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from seatrial.events import decode, encode
from seatrial.logs.fault_table import KINDS, Cuts
from seatrial.metrics import Completion, Metrics, Numerics
from seatrial.spec import RunSpec
from seatrial.verdict.check import AXES, WORST_FIRST, Axis, Check, Status, show, show_beside
from seatrial.verdict.completion import judge_completion
from seatrial.verdict.exit_codes import EXIT_CODES, WORST_OUTCOME_FIRST, Outcome
from seatrial.verdict.headline import headline
from seatrial.verdict.numerics import judge_numerics
from seatrial.verdict.performance import judge_performance, shifts_told

__all__ = [
    "AXES",
    "EXIT_CODES",
    "WORST_OUTCOME_FIRST",
    "Axis",
    "AxisVerdict",
    "Check",
    "Outcome",
    "Status",
    "Verdict",
    "from_dict",
    "judge",
    "shifts_told",
    "show",
    "show_beside",
    "to_dict",
]

VERSION = 1
TOLERANCE = 0.05

# Checks that a log fails whatever its spelling: a loss that is not finite, and what broke.
_BEYOND_DOUBT = ("loss finite", "orderly end")
# What ended a run before its work was done, by the last word on it.
_CUT_SHORT: dict[str, Outcome] = {cut: cut for cut in get_args(Cuts)}


@dataclass(frozen=True, kw_only=True)
class AxisVerdict:
    """The checks of one axis; its status is that of the worst of them."""

    status: Status
    checks: tuple[Check, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer: `convention` is how FLOPs were counted, `tolerance` what bounds without their own were given."""

    outcome: Outcome
    headline: str
    axes: Mapping[Axis, AxisVerdict]
    tolerance: float
    convention: str

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]


def to_dict(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain data that JSON can carry, for `verdict.json`."""
    fields = encode(dataclasses.asdict(verdict))
    return {"v": VERSION, "outcome": fields.pop("outcome"), "exit_code": verdict.exit_code, **fields}


def from_dict(data: Mapping[str, Any]) -> Verdict:
    """The inverse of `to_dict`. Raises pydantic.ValidationError for anything else."""
    return decode(Verdict, {k: v for k, v in data.items() if k not in ("v", "exit_code")})


def judge(
    metrics: Metrics, spec: RunSpec | None, *, rehearsal: str, dropped: Sequence[str] = (), tolerance: float = TOLERANCE
) -> Verdict:
    """The verdict on a run; `tolerance` is the fraction of a target by which it may be missed.

    `spec` is what was run, None where no configuration is known: then there are no targets. `rehearsal` is
    the word for a run that was not the one asked for, else empty; `dropped` are keys that bear on speed or memory, and
    that the run did not get.
    """
    completion, numerics, performance = metrics.completion, metrics.numerics, metrics.performance
    checks = [
        *judge_completion(completion),
        *judge_numerics(numerics, spec),
        *judge_performance(performance, spec, rehearsal=rehearsal, dropped=dropped, tolerance=tolerance),
    ]
    if completion.guessed and not completion.confirmed:
        beyond_doubt = (*_BEYOND_DOUBT, *(("gradient finite",) if numerics.non_finite_grad_steps else ()))
        checks = [check if check.name in beyond_doubt else _doubted(check) for check in checks]
    axes = {axis: _axis(check for check in checks if check.axis == axis) for axis in AXES}
    outcome = _outcome(completion, numerics, axes)
    return Verdict(
        outcome=outcome,
        headline=headline(outcome, metrics, checks, rehearsal=rehearsal),
        axes=axes,
        tolerance=tolerance,
        convention=performance.convention,
    )


def _doubted(check: Check) -> Check:
    """A check of a log whose spelling was guessed, so that it may be wrong."""
    if check.status != "fail":
        return check
    return dataclasses.replace(check, status="inconclusive", evidence=(*check.evidence, "by a guessed spelling"))


def _axis(checks: Iterable[Check]) -> AxisVerdict:
    checks = tuple(checks)
    return AxisVerdict(status=min((check.status for check in checks), key=WORST_FIRST.index), checks=checks)


def _outcome(completion: Completion, numerics: Numerics, axes: Mapping[Axis, AxisVerdict]) -> Outcome:
    blamed = completion.diagnosis.kind if completion.diagnosis else None
    if numerics.num_non_finite or numerics.non_finite_others or "non_finite_loss" in (completion.reason, blamed):
        return "fail"  # that the run stopped because of it is a consequence
    if completion.all_steps_done:
        failed = [check.name for check in axes["completion"].checks if check.status == "fail"]
        if failed == ["orderly end"] and axes["numerics"].status != "fail":
            return "teardown_failed"
    elif cut := _cut_short(completion):
        return cut
    statuses = {axis.status for axis in axes.values()}
    return "fail" if "fail" in statuses else "inconclusive" if "inconclusive" in statuses else "pass"


def _cut_short(completion: Completion) -> Outcome | None:
    """The outcome of a run whose steps are not all done; None if neither its recorded reason nor a fault gives one.

    The launcher that watched a run knows it best. The last word of another trainer's log is no more than an exit
    code, so there the fault that came first decides.
    """
    said = _CUT_SHORT.get(completion.reason or "")
    if completion.diagnosis and (completion.from_other_trainer or not completion.reason):
        cuts = KINDS[completion.diagnosis.kind].cuts
        started = completion.from_other_trainer and completion.last_step is not None
        return "died" if cuts == "could_not_run" and started else cuts
    return said
