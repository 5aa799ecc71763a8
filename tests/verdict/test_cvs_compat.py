"""The answers of CVS on the logs that it is known to misjudge."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from seatrial import logs
from seatrial.metrics import measure
from seatrial.spec import Expectation, RunSpec
from seatrial.verdict import Check, judge
from seatrial.verdict.cvs_compat import MISTAKES, CvsAnswer, from_dict, judge_like_cvs, to_dict, unseen
from tests.verdict.cvs_logs import STEPS, falling, maxtext, maxtext_spec, megatron, megatron_spec, rising

TOKENS = Expectation(metric="tokens_per_second_per_device", value=6500.0)
STEP_TIME = Expectation(metric="step_seconds", value=12.0)
MEGATRON = megatron_spec(TOKENS, STEP_TIME)
MAXTEXT = maxtext_spec(900.0)
OOM = (
    "Traceback (most recent call last):",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 191.98 GiB",
)


def nan_from(step: int) -> Callable[[int], float]:
    return lambda number: math.nan if number >= step else falling(number)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A log, what CVS answers (its verdict and how many complaints), by which of its mistakes, and what is right.

    `ours` are the outcomes that are right, `named` what such an answer has to say.
    """

    name: str
    spec: RunSpec
    log: list[str]
    ours: tuple[str, ...]
    named: str
    verdict: str
    complaints: int = 0
    mistakes: tuple[str, ...] = ()


CASES = [
    Case(
        name="megatron barely good enough in tokens/s, far too slow in ms",
        ours=("fail",), named="target ≤ 12",
        spec=MEGATRON,
        log=megatron(step_ms=20165.0, tokens=6501.0), verdict="pass", mistakes=("direction",),
    ),
    Case(
        name="megatron much faster than asked for",
        ours=("pass",), named="met its speed targets",
        spec=MEGATRON,
        log=megatron(step_ms=10922.7, tokens=12000.1), verdict="fail", complaints=11, mistakes=("direction",),
    ),
    Case(
        name="megatron loses its loss from iteration 4 on",
        ours=("fail",), named="steps report a loss",
        spec=MEGATRON,
        log=megatron(step_ms=12100.0, tokens=10832.0, loss=lambda step: falling(step) if step < 4 else None),
        verdict="pass",
    ),
    Case(
        name="megatron loss rises",
        ours=("fail",), named="loss rises",
        spec=MEGATRON,
        log=megatron(step_ms=12100.0, tokens=10832.0, loss=rising), verdict="pass",
    ),
    Case(
        name="megatron stands still after iteration 5",
        ours=("fail", "no_progress"), named="after step 5",
        spec=MEGATRON,
        log=megatron(step_ms=12100.0, tokens=10832.0, iterations=5, summary=False),
        verdict="fail", complaints=1, mistakes=("no cause",),
    ),
    Case(
        name="megatron dies of memory after iteration 5",
        ours=("died",), named="out of memory",
        spec=MEGATRON,
        log=megatron(step_ms=12100.0, tokens=10832.0, iterations=5, summary=False, after=OOM),
        verdict="fail", complaints=1, mistakes=("no cause",),
    ),
    Case(
        name="maxtext loss rises",
        ours=("fail",), named="loss rises",
        spec=MAXTEXT, log=maxtext(MAXTEXT, loss=rising),
        verdict="pass",
    ),
    Case(
        name="maxtext loss is 0 throughout",
        ours=("fail", "inconclusive"), named="all 0|exactly 0",
        spec=MAXTEXT, log=maxtext(MAXTEXT, loss=lambda step: 0.0),
        verdict="pass",
    ),
    Case(
        name="maxtext speed alternates by a factor of 10",
        ours=("fail", "inconclusive"), named="vary|peak|steady",
        spec=maxtext_spec(300.0),
        log=maxtext(MAXTEXT, tokens=lambda step: 400.0 if step % 2 else 4000.0), verdict="pass",
    ),
    Case(
        name="maxtext loss is NaN from step 5 on",
        ours=("fail",), named="nan at step 5",
        spec=MAXTEXT, log=maxtext(MAXTEXT, loss=nan_from(5)),
        verdict="crash", complaints=26, mistakes=("malformed",),
    ),
    Case(
        name="maxtext loss is NaN throughout",
        ours=("fail",), named="nan at step 0",
        spec=MAXTEXT, log=maxtext(MAXTEXT, loss=nan_from(0)),
        verdict="crash", complaints=31, mistakes=("malformed",),
    ),
    Case(
        name="maxtext does all steps and leaves no shutdown line",
        ours=("pass",), named="Completed all 30 steps",
        spec=MAXTEXT, log=maxtext(MAXTEXT, marker=False),
        verdict="fail", complaints=1, mistakes=("marker",),
    ),
    Case(
        name="maxtext prints a harmless ValueError",
        ours=("pass",), named="Completed all 30 steps",
        spec=MAXTEXT,
        log=maxtext(MAXTEXT, before=("cache: ValueError: no entry, it is made anew",)),
        verdict="fail", complaints=1, mistakes=("words",),
    ),
]  # fmt: skip


def findings(answer: CvsAnswer) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f.about for f in (*answer.complaints, *answer.silences) if f.about))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answer_of_cvs(case: Case) -> None:
    answer = judge_like_cvs(case.log, case.spec)
    assert (answer.verdict, answer.num_complaints) == (case.verdict, case.complaints)
    assert findings(answer) == case.mistakes


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_right_answer(case: Case) -> None:
    verdict = judge(measure(logs.parse(case.log), case.spec), case.spec, rehearsal=False)
    assert verdict.outcome in case.ours, verdict.headline
    checks = [check for axis in verdict.axes.values() for check in axis.checks if check.status != "pass"]
    assert re.search(case.named, "\n".join([verdict.headline, *(check.sentence for check in checks)]))


def test_faster_run_is_the_fault_of_its_comparison_and_the_line_is_named() -> None:
    log = megatron(step_ms=10922.7, tokens=12000.1)
    complaint = judge_like_cvs(log, MEGATRON).complaints[0]
    assert not complaint.right
    assert complaint.why == MISTAKES["direction"]
    assert "iteration       20/" in log[(complaint.line or 0) - 1]  # 4 lines sum up, 11 iterations are left of 15
    assert "elapsed_time_per_iteration 10,9" in complaint.says


def test_run_that_is_too_slow_fails_in_cvs_too_and_rightly() -> None:
    answer = judge_like_cvs(maxtext(MAXTEXT, tokens=lambda step: 800.0), MAXTEXT)
    assert answer.verdict == "fail"
    assert answer.num_complaints == 2 * (STEPS - 6)
    assert all(finding.right for finding in answer.complaints)


def test_one_slow_step_fails_a_run_in_cvs_and_wrongly() -> None:
    answer = judge_like_cvs(maxtext(MAXTEXT, tokens=lambda step: 500.0 if step == 17 else 1000.0), MAXTEXT)
    assert answer.num_complaints == 2
    assert findings(answer) == ("every step",)


def test_half_a_percent_below_the_bar_is_noise_but_not_to_cvs() -> None:
    answer = judge_like_cvs(maxtext(MAXTEXT, tokens=lambda step: 896.0), MAXTEXT)
    assert answer.verdict == "fail"
    assert findings(answer) == ("no tolerance",)


def test_run_that_shuts_down_early_passes_in_cvs() -> None:
    answer = judge_like_cvs(maxtext(MAXTEXT, steps=12), MAXTEXT)
    assert answer.verdict == "pass"
    assert findings(answer) == ("early end",)


def test_a_speed_beyond_eleven_medians_is_all_that_counts_as_deviation() -> None:
    log = maxtext(MAXTEXT, tokens=lambda step: 12000.0 if step == 9 else 1000.0)
    assert findings(judge_like_cvs(log, MAXTEXT)) == ("spread",)
    assert (
        judge_like_cvs(maxtext(MAXTEXT, tokens=lambda step: 9000.0 if step == 9 else 1000.0), MAXTEXT).verdict == "pass"
    )


def test_the_first_line_of_a_step_counts_in_cvs() -> None:
    log = maxtext(MAXTEXT)
    slow = maxtext(MAXTEXT, tokens=lambda step: 500.0)
    assert judge_like_cvs([*log, *slow], MAXTEXT).verdict == "pass"
    assert judge_like_cvs([*slow, *log], MAXTEXT).verdict == "fail"


def test_cvs_breaks_where_a_bar_is_missing() -> None:
    spec = maxtext_spec(900.0)
    one_bar = megatron_spec(TOKENS)
    answer = judge_like_cvs(maxtext(spec), one_bar)
    assert answer.verdict == "crash"
    assert answer.complaints[-1].says == "KeyError"


def test_tokens_lose_their_decimals() -> None:
    spec = megatron_spec(Expectation(metric="tokens_per_second_per_device", value=6500.5))
    answer = judge_like_cvs(megatron(step_ms=20164.0, tokens=6500.9), spec)
    assert findings(answer) == ("cut off",)


def test_summary_that_is_not_a_number_is_found_by_its_first_letter() -> None:
    answer = judge_like_cvs(megatron(step_ms=12100.0, tokens=math.nan), MEGATRON)
    assert answer.verdict == "fail"
    assert findings(answer)[0] == "character class"


def test_what_is_expected_but_not_in_the_log_is_skipped() -> None:
    spec = megatron_spec(Expectation(metric="memory_fraction", value=0.9))
    log = [line.replace("mem usages", "memory") for line in megatron(step_ms=12100.0, tokens=10832.0)]
    answer = judge_like_cvs(log, spec)
    assert answer.verdict == "pass"
    assert findings(answer) == ("not compared",)


def test_what_our_checks_see_and_cvs_does_not_is_explained() -> None:
    answer = judge_like_cvs(megatron(step_ms=12100.0, tokens=10832.0, loss=rising), MEGATRON)
    trend = Check(name="loss trend", axis="numerics", status="fail", sentence="The loss rises.")
    fine = Check(name="loss finite", axis="numerics", status="pass", sentence="The loss is finite at every step.")
    assert unseen(answer, [trend, fine]) == [(trend, "CVS never reads the loss")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answer_survives_its_file(case: Case) -> None:
    answer = judge_like_cvs(case.log, case.spec)
    assert from_dict(json.loads(json.dumps(to_dict(answer)))) == answer


def test_other_logs_and_runs_without_a_configuration_are_none_of_its_business() -> None:
    assert judge_like_cvs(["step:  1  loss:  8.0  tps: 7,100"], MEGATRON).verdict == "not_applicable"
    assert judge_like_cvs(maxtext(MAXTEXT), None).verdict == "not_applicable"
    assert to_dict(judge_like_cvs([], None))["complaints"] == []
    assert unseen(judge_like_cvs([], None), []) == []
