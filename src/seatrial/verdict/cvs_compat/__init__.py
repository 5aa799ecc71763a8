"""The answer of ROCm CVS itself to a log, and where that is wrong, so that a different answer can be explained.

Its rules as of November 2025 (ROCm/cvs 7afb1ca3, lib/jax_training_lib.py and lib/megatron_training_lib.py), restated.
CVS reads the log of the last node only, as it is: no colour is stripped, no prefix removed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from seatrial.events import decode, encode
from seatrial.spec import RunSpec
from seatrial.verdict.check import Check
from seatrial.verdict.cvs_compat.findings import MISTAKES, Answer, CvsAnswer, Finding, Flavour
from seatrial.verdict.cvs_compat.maxtext import MAXTEXT_KEYS, MaxTextReading
from seatrial.verdict.cvs_compat.megatron import MegatronReading

__all__ = [
    "MISTAKES", "Answer", "CvsAnswer", "Finding", "Flavour", "from_dict", "judge_like_cvs", "to_dict", "unseen",
]  # fmt: skip

_IF_PASSED = {"all steps done", "record complete", "orderly end", *MAXTEXT_KEYS}  # it failed them in its own way

# Why CVS is silent where a check of ours is not: flavour → name of the check → reason.
_UNSEEN_BY_BOTH = {
    "gradient finite": "CVS never reads the gradient norm",
    "processes agree": "CVS reads one node's log only",
    "processes together": "CVS verifies the last node only",
    "ran as configured": "CVS does not compare what ran with the configuration",
    "figures agree": "CVS does not compare the figures of a log with each other",
    "mfu": "CVS knows no peak of the device",
}
_UNSEEN: dict[Flavour, dict[str, str]] = {
    "jax": {
        **_UNSEEN_BY_BOTH,
        "loss finite": "CVS searches for NaN in the speed only, and by a name that the log does not use",
        "loss reported": "CVS never reads the loss",
        "loss trend": "CVS reads the loss but compares it with nothing: its check is commented out",
        "step_seconds": "CVS does not compare the step time",
        "memory_fraction": "CVS does not read the memory of JAX runs",
        **dict.fromkeys(
            MAXTEXT_KEYS, "CVS compares single steps with the target, whatever their spread and the device's peak"
        ),
    },
    "megatron": {
        **_UNSEEN_BY_BOTH,
        "loss finite": "CVS never reads the loss, the skipped or the NaN iterations",
        "loss reported": "CVS never reads the loss, which Megatron leaves out when it is NaN",
        "loss trend": "CVS never reads the loss",
        "all steps done": "CVS treats the summary lines as the end of training, and they come after a crash too",
        "record complete": "CVS reads the last 15 lines only",
        "orderly end": "CVS looks neither at exit codes nor at what follows the summary",
        "step_seconds": MISTAKES["direction"],
        "memory_fraction": MISTAKES["direction"],
    },
}


def to_dict(answer: CvsAnswer) -> dict[str, Any]:
    """The answer as plain data that JSON can carry."""
    fields: dict[str, Any] = encode(dataclasses.asdict(answer))
    return fields


def from_dict(data: Mapping[str, Any]) -> CvsAnswer:
    """The inverse of `to_dict`. Raises pydantic.ValidationError for anything else."""
    return decode(CvsAnswer, data)


def judge_like_cvs(lines: Iterable[str], spec: RunSpec | None, *, tolerance: float = 0.05) -> CvsAnswer:
    """The answer of CVS to the last node's log, given as it is, line by line.

    Steps and expectations are those of `spec`; `tolerance` (fraction) decides only how right CVS is. Of a log, what is
    kept are three numbers per step. Not applicable without a spec, or if the log is of neither MaxText nor Megatron.
    """
    if spec is None:
        return CvsAnswer(flavour=None, verdict="not_applicable")
    maxtext, megatron = MaxTextReading(spec, tolerance), MegatronReading(spec, tolerance)
    number = 0
    for number, line in enumerate(lines, 1):
        maxtext.feed(number, line)
        megatron.feed(number, line)
    if maxtext.is_meant or (spec.dialect == "cvs-jax" and not megatron.is_meant):
        return maxtext.answer(number)
    if megatron.is_meant or spec.dialect == "cvs-megatron":
        return megatron.answer(number)
    return CvsAnswer(flavour=None, verdict="not_applicable")


def unseen(answer: CvsAnswer, checks: Iterable[Check]) -> list[tuple[Check, str]]:
    """The checks of our own verdict that did not pass and that CVS has no eye for, each with the reason."""
    reasons = _UNSEEN[answer.flavour] if answer.flavour else {}
    silent = any(finding.about == "direction" for finding in answer.silences)
    return [
        (check, reasons[check.name])
        for check in checks
        if check.name in reasons
        and (check.status == "fail" or (check.status == "inconclusive" and answer.verdict == "pass"))
        and (answer.verdict == "pass" or check.name not in _IF_PASSED)
        and not (silent and reasons[check.name] == MISTAKES["direction"])
    ]
