"""The verdict on runs of every kind: sound ones, and each way in which a run can be less than that."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from seatrial import events, metrics, recording, verdict
from seatrial.spec import METRICS, Expectation, Objective, Precision, RunSpec
from seatrial.verdict import EXIT_CODES, Check, Verdict, show
from tests.helpers.streams import ended, falling, fault, make_spec, rising, started, steps, whole_run

# 4 devices, 16 × 128 tokens in 0.5 s: 1024 tokens/s per device.
TOKENS = "tokens_per_second_per_device"


def judged(run: list[events.Event], spec: RunSpec, *, rehearsal: bool = False, **options: Any) -> Verdict:
    return verdict.judge(metrics.measure(run, spec), spec, rehearsal=rehearsal, **options)


def check(found: Verdict, name: str) -> Check:
    (match,) = [check for axis in found.axes.values() for check in axis.checks if check.name == name]
    return match


def expecting(metric: str, value: float, tolerance: float | None = None, **changes: Any) -> RunSpec:
    return make_spec(expectations=[Expectation(metric=metric, value=value, tolerance=tolerance)], **changes)


def test_a_sound_run_passes() -> None:
    spec = make_spec(processes=2)
    found = judged(whole_run(spec), spec)
    assert (found.outcome, found.exit_code) == ("pass", 0)
    assert {name: axis.status for name, axis in found.axes.items()} == {
        "completion": "pass",
        "numerics": "pass",
        "performance": "not_applicable",
    }
    assert found.headline == (
        "Completed all 30 steps, and the loss fell from 6.240 to 2.580. "
        "Speed was recorded, not judged: no performance target is set."
    )
    assert (found.tolerance, found.convention) == (0.05, "causal")


def test_a_loss_that_falls_unseen_is_no_sign_of_learning() -> None:
    """DPO with a rate far too low: each loss is below the one before, and all of them are ln 2 to three digits."""
    falls = {"loss": lambda step: math.log(2) * (1 - 2e-5 * step)}
    synthetic, real = (make_spec(data=kind, objective=Objective(kind="dpo")) for kind in ("synthetic", "records"))
    found = judged(whole_run(synthetic, **falls), synthetic, rehearsal=True)
    assert (found.outcome, check(found, "loss trend").status) == ("pass", "not_applicable")
    assert "but nothing to speak of was learnt: the loss stayed at 0.693." in found.headline
    found = judged(whole_run(real, **falls), real)
    assert (found.outcome, check(found, "loss trend").status) == ("inconclusive", "inconclusive")
    assert "hardly anything is learnt" in found.headline


@pytest.mark.parametrize(("fall", "outcome"), [(0.00017, "inconclusive"), (0.0006, "pass")])
def test_a_loss_that_stays_at_ln_2_shows_no_learning_however_clearly_it_falls(fall: float, outcome: str) -> None:
    """DPO's first steps: by half a percent, as with a rate that is too low, or by 2%."""
    spec = make_spec(data="records", objective=Objective(kind="dpo"))
    found = judged(whole_run(spec, loss=lambda step: 0.693147 - fall * step), spec)
    assert (found.outcome, "ln 2" in found.headline) == (outcome, outcome != "pass")


def test_a_loss_that_falls_by_half_a_percent_elsewhere_is_learnt() -> None:
    spec = make_spec(data="records")
    found = judged(whole_run(spec, loss=lambda step: 0.793147 - 0.00017 * step), spec)
    assert found.outcome == "pass"
    assert "the loss fell from 0.793 to 0.788" in found.headline


def test_every_outcome_has_its_exit_code() -> None:
    assert EXIT_CODES == {
        "pass": 0, "fail": 1, "teardown_failed": 1, "could_not_run": 3, "died": 4, "no_progress": 5, "inconclusive": 6,
        "interrupted": 130,
    }  # fmt: skip


# --- what the field's present validator gets wrong, each with the right answer ---

CASES: dict[str, tuple[str, str, str, Callable[[RunSpec], list[events.Event]]]] = {
    # name: outcome, the check that decides, its status, the run
    "faster than expected": ("pass", "step_seconds", "pass", lambda s: whole_run(s, seconds=lambda n: 0.26)),
    "barely slower than expected": ("pass", "step_seconds", "pass", lambda s: whole_run(s, seconds=lambda n: 0.51)),
    "much slower than expected": ("fail", "step_seconds", "fail", lambda s: whole_run(s, seconds=lambda n: 0.84)),
    "loss NaN from step 5": (
        "fail", "loss finite", "fail", lambda s: whole_run(s, loss=lambda n: math.nan if n >= 5 else falling(n)),
    ),
    "loss NaN throughout": ("fail", "loss finite", "fail", lambda s: whole_run(s, loss=lambda n: math.nan)),
    "loss left out from step 4, as Megatron does when it is NaN": (
        "fail", "loss reported", "fail", lambda s: whole_run(s, loss=lambda n: None if n >= 4 else falling(n)),
    ),
    "loss never reported": ("fail", "loss reported", "fail", lambda s: whole_run(s, loss=lambda n: None)),
    "loss infinite once": (
        "fail", "loss finite", "fail", lambda s: whole_run(s, loss=lambda n: math.inf if n == 12 else falling(n)),
    ),
    "loss rising": ("fail", "loss trend", "fail", lambda s: whole_run(s, loss=rising)),
    "loss constant 0": ("fail", "loss trend", "fail", lambda s: whole_run(s, loss=lambda n: 0.0)),
    "speed alternating tenfold": (
        "inconclusive", "step_seconds", "inconclusive",
        lambda s: whole_run(s, seconds=lambda n: 0.5 if n % 2 else 0.05),
    ),
    "hang after step 5": (
        "no_progress", "all steps done", "fail",
        lambda s: [
            started(s), *steps(s, last=5),
            fault("no_progress", "all ranks", "no step after step 5 for 61 s; the limit is 60 s"),
            ended("no_progress", -1),
        ],
    ),
    "crash with out of memory": (
        "died", "orderly end", "fail",
        lambda s: [
            started(s), *steps(s, last=5),
            fault("step_failed", "rank 0", "RESOURCE_EXHAUSTED: Out of memory", process=0),
            fault("process_died", "rank 0 on local0", "rank 0 on local0 ended with exit code 75", at=901),
            ended("died", -1, exit_code=75),
        ],
    ),
    "all steps done, but no end marker": (
        "inconclusive", "orderly end", "inconclusive", lambda s: [started(s), *steps(s)],
    ),
    "nothing but steps": ("inconclusive", "orderly end", "inconclusive", lambda s: [*steps(s)]),
    "no launcher, but the word of the process": (
        "pass", "orderly end", "pass", lambda s: [started(s), *steps(s), ended()],
    ),
    "no word of the process": (
        "inconclusive", "orderly end", "inconclusive", lambda s: [started(s), *steps(s), ended(process=-1)],
    ),
    "no word on what was run": (
        "inconclusive", "ran as configured", "inconclusive", lambda s: [*steps(s), ended(), ended(process=-1)],
    ),
    "the process contradicts the launcher": (
        "teardown_failed", "orderly end", "fail",
        lambda s: [started(s), *steps(s), ended("died", exit_code=1), ended(process=-1)],
    ),
    "completed with an exit code": (
        "teardown_failed", "orderly end", "fail",
        lambda s: [started(s), *steps(s), ended(exit_code=1), ended(process=-1)],
    ),
    "the launcher contradicts itself": (
        "teardown_failed", "orderly end", "fail",
        lambda s: [*whole_run(s)[:-1], fault("process_died", "rank 0", "killed"), ended(process=-1, at=1001)],
    ),
    "first and last step only": (
        "inconclusive", "record complete", "inconclusive",
        lambda s: [e for e in whole_run(s) if getattr(e, "step", 0) in (0, 29)],
    ),
    "a NaN that is printed once more as a number": (
        "fail", "loss finite", "fail",
        lambda s: [started(s), *steps(s, last=12, loss=lambda n: math.nan if n == 12 else falling(n)),
                   *steps(s, first=12), ended()],
    ),
    "a number that is printed once more as NaN": (
        "fail", "loss finite", "fail",
        lambda s: [started(s), *steps(s, last=12), *steps(s, first=12, last=12, loss=lambda n: math.nan),
                   *steps(s, first=13), ended()],
    ),
    "every second step": (
        "inconclusive", "record complete", "inconclusive",
        lambda s: [e for e in whole_run(s) if getattr(e, "step", 1) % 2],
    ),
    "log cut off before the last step": ("fail", "all steps done", "fail", lambda s: [started(s), *steps(s, last=28)]),
    "log cut off at the front": ("inconclusive", "record complete", "inconclusive", lambda s: [*steps(s, first=4)]),
    "first step only": ("fail", "all steps done", "fail", lambda s: [started(s), *steps(s, last=0)]),
    "nothing at all": ("fail", "all steps done", "fail", lambda s: []),
    "gradient norm infinite": (
        "fail", "gradient finite", "fail", lambda s: whole_run(s, grad_norm=lambda n: math.inf if n == 3 else 1.0),
    ),
    "no gradient norm": ("pass", "gradient finite", "not_applicable", lambda s: whole_run(s, grad_norm=lambda n: None)),
    "one step too many": ("fail", "all steps done", "fail", lambda s: [started(s), *steps(s, last=30)]),
    "no times": ("fail", "step_seconds", "fail", lambda s: whole_run(s, seconds=lambda n: None)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_right_answer(name: str) -> None:
    outcome, deciding, status, run = CASES[name]
    spec = expecting("step_seconds", 0.5)
    found = judged(run(spec), spec)
    assert (found.outcome, check(found, deciding).status) == (outcome, status), found.headline


def test_a_line_that_merely_looks_like_an_error_is_no_event_and_fails_nothing() -> None:
    # A fault that the run survived is shown, but the end of the run decides.
    spec = make_spec()
    ignored = fault("suspicious_line", "rank 0", "ValueError: ignored", process=0, at=11)
    run = recording.merge([whole_run(spec), [ignored]])
    found = judged(run, spec)
    assert found.outcome == "pass"
    assert "ValueError: ignored" in check(found, "orderly end").evidence[0]


# --- how runs end ---


def test_a_killed_process_is_named() -> None:
    spec = make_spec(processes=2)
    run = recording.merge(
        [
            [started(spec), *steps(spec, last=7)],
            [started(spec, 1), *steps(spec, 1, last=7)],
            [
                fault("process_died", "rank 1 on local1", "rank 1 on local1 was killed by SIGKILL (9)", at=20),
                fault("peer_stopped", "rank 0 on local0", "rank 0 on local0 was told to stop", at=21),
                ended("died", -1, exit_code=137, at=22),
            ],
        ]
    )
    found = judged(run, spec)
    assert (found.outcome, found.exit_code) == ("died", 4)
    assert found.headline == (
        "Training died after step 7 (8 of 30 done): rank 1 on local1 was killed by SIGKILL (9). "
        "Because of it, rank 0 on local0 went down too."
    )
    assert found.axes["completion"].status == "fail"
    assert found.axes["numerics"].status == "pass"
    assert "process_died" in check(found, "orderly end").evidence[0]


def test_a_loss_that_turns_nan_fails_even_though_the_trainer_stopped() -> None:
    spec = make_spec()
    run = [
        started(spec), *steps(spec, last=5, loss=lambda n: math.nan if n == 5 else falling(n)),
        fault("non_finite_loss", "rank 0", "loss is nan at step 5", process=0),
        ended("non_finite_loss", 0, exit_code=1),
        fault("process_died", "rank 0 on local0", "rank 0 on local0 ended with exit code 1", at=1001),
        ended("died", -1, exit_code=1, at=1002),
    ]  # fmt: skip
    found = judged(run, spec)
    assert (found.outcome, found.exit_code) == ("fail", 1)
    assert found.headline == "The loss became nan at step 5; the run stopped there."
    assert found.axes["numerics"].status == "fail"
    assert "step 5" in check(found, "loss finite").sentence


@pytest.mark.parametrize(
    ("reason", "outcome", "opening"),
    [
        ("interrupted", "interrupted", "Interrupted after step 7"),
        ("no_progress", "no_progress", "No progress after step 7"),
        ("could_not_run", "could_not_run", "The run could not be started"),
        ("died", "died", "Training died after step 7"),
    ],
)
def test_a_run_that_is_cut_short(reason: str, outcome: str, opening: str) -> None:
    spec = make_spec()
    found = judged([started(spec), *steps(spec, last=7), ended(reason, -1, exit_code=None)], spec)
    assert found.outcome == outcome
    assert found.headline.startswith(opening)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("process_died", "died"),
        ("step_failed", "died"),
        ("no_progress", "no_progress"),
        ("start_failed", "could_not_run"),
    ],
)
def test_without_a_last_word_the_fault_decides(kind: str, outcome: str) -> None:
    spec = make_spec()
    assert judged([started(spec), *steps(spec, last=7), fault(kind, "rank 0", "")], spec).outcome == outcome


def test_trained_but_the_teardown_failed() -> None:
    spec = make_spec()
    run = [
        started(spec), *steps(spec),
        fault("process_died", "rank 0 on local0", "rank 0 on local0 was killed by SIGABRT (6)"),
        ended("died", -1, exit_code=134),
    ]  # fmt: skip
    found = judged(run, spec)
    assert (found.outcome, found.exit_code) == ("teardown_failed", 1)
    assert found.headline == (
        "Completed all 30 steps, but the run did not end in order: rank 0 on local0 was killed by SIGABRT (6)."
    )


def test_one_process_that_stops_early_fails_the_run() -> None:
    spec = make_spec(processes=2)
    run = recording.merge(
        [[started(spec), *steps(spec), ended()], [started(spec, 1), *steps(spec, 1, last=12), ended(process=1)]]
    )
    found = judged(run, spec)
    assert found.outcome == "fail"
    assert (
        check(found, "processes together").sentence
        == "Not all processes reached step 29: rank 1 stopped after step 12."
    )


def test_a_process_without_a_record_leaves_it_open() -> None:
    spec = make_spec(processes=2)
    found = judged([started(spec), *steps(spec), ended(), ended(process=-1)], spec)
    assert found.outcome == "inconclusive"
    assert found.headline == "1 of 2 processes report no step."


def is_of_rank_1(event: events.Event, steps_of_it: set[int]) -> bool:
    return isinstance(event, events.Step) and event.process == 1 and event.step in steps_of_it


def test_every_process_is_looked_at() -> None:
    spec, other = make_spec(processes=2), make_spec(processes=2, steps=29)
    sound = whole_run(spec)
    for name, run in (
        ("record complete", [e for e in sound if (e.process, getattr(e, "step", 0)) != (1, 12)]),
        ("ran as configured", [e for e in sound if not (e.process == 1 and isinstance(e, events.RunStarted))]),
        ("ran as configured", [started(other, 1) if e == started(spec, 1) else e for e in sound]),
        ("orderly end", [e for e in sound if not (e.process == 1 and isinstance(e, events.RunEnded))]),
        ("processes together", [e for e in sound if e.process != 1]),
        ("gradient finite", [_with(e, grad_norm=math.nan) if is_of_rank_1(e, {9}) else e for e in sound]),
        ("loss reported", [_with(e, loss=None) if is_of_rank_1(e, {*range(1, 30)}) else e for e in sound]),
        ("processes agree", [_with(e, loss=None) if is_of_rank_1(e, {*range(30)}) else e for e in sound]),
    ):
        found = judged(run, spec)
        assert (found.outcome, check(found, name).status) in (("fail", "fail"), ("inconclusive", "inconclusive"))
    assert judged(sound, spec).outcome == "pass"


def test_a_record_that_breaks_off_is_said_to() -> None:
    spec = make_spec()
    found = judged([started(spec), *steps(spec, last=11)], spec)
    assert found.outcome == "fail"
    assert found.headline == ("The record breaks off after step 11 (12 of 30 done): nothing says how the run ended.")


def test_an_interrupt_is_blamed_on_nobody() -> None:
    spec = make_spec(processes=2)
    run = recording.merge(
        [
            [started(spec), *steps(spec, last=7), fault("step_failed", "rank 0", "the peer is gone", process=0, at=20)],
            [started(spec, 1), *steps(spec, 1, last=7)],
            [fault("peer_stopped", "rank 1 on local1", "told to stop", at=21), ended("interrupted", -1, at=22)],
        ]
    )
    found = judged(run, spec)
    assert found.headline == "Interrupted after step 7 (8 of 30 done)."
    assert check(found, "orderly end").evidence == ()


def test_processes_that_disagree_fail() -> None:
    spec = make_spec(processes=2)
    apart = steps(spec, 1, loss=lambda n: falling(n) + 0.01)
    found = judged(recording.merge([[started(spec), *steps(spec)], [started(spec, 1), *apart]]), spec)
    assert found.outcome == "fail"
    assert check(found, "processes agree").status == "fail"


def test_another_run_than_the_one_asked_for_fails() -> None:
    asked, ran = make_spec(), make_spec(processes=2)
    found = judged([started(ran), *steps(asked)], asked)
    assert check(found, "ran as configured").sentence == "This is not the configured run: devices: 8 ran, 4 configured."


def test_a_run_in_fp8_whose_program_has_none_is_not_the_one_asked_for() -> None:
    spec = make_spec(precision=Precision(quantization="te_fp8_currentscaling"))
    for computes, status in ((True, "pass"), (False, "fail")):
        began = started(spec)
        began = replace(began, facts={**began.facts, "computes_fp8": computes})
        found = check(judged([began, *steps(spec), ended("completed", 0)], spec), "ran as configured")
        assert found.status == status
    assert found.sentence == (
        "This is not the configured run: fp8: none in the compiled step, te_fp8_currentscaling configured."
    )


# --- numerics on synthetic data, which may stay flat ---


@pytest.mark.parametrize(
    ("loss", "data", "status"),
    [
        (falling, "synthetic", "pass"),
        (falling, "text", "pass"),
        (rising, "synthetic", "fail"),
        (rising, "text", "fail"),
        (lambda n: 5 + 0.01 * math.sin(7 * n), "synthetic", "not_applicable"),
        (lambda n: 5 + 0.01 * math.sin(7 * n), "text", "inconclusive"),
        (lambda n: 5.0, "synthetic", "inconclusive"),
        (lambda n: 5.0, "text", "fail"),
        (lambda n: 5.545 if n > 8 else falling(n), "text", "fail"),  # a dead model
        (lambda n: 0.0 if n > 8 else falling(n), "synthetic", "inconclusive"),  # learnt by heart, or lost
        (lambda n: 0.0 if n > 15 else falling(n), "text", "fail"),
        (lambda n: 0.0 if n > 25 else falling(n), "text", "fail"),
        (lambda n: 0.0, "synthetic", "fail"),
        (lambda n: 3.0 - 0.2 * n, "synthetic", "fail"),  # below 0
        (lambda n: -1.0 if n == 12 else falling(n), "text", "fail"),
        (lambda n: 1e30 if n == 29 else falling(n), "text", "fail"),
        (lambda n: 1e30 if n == 29 else falling(n), "synthetic", "fail"),
        (lambda n: 1000.0 if n > 26 else falling(n), "text", "fail"),
        (lambda n: 12.0 if n > 26 else falling(n), "text", "fail"),
        (lambda n: 1e9 if 10 <= n < 20 else falling(n), "text", "inconclusive"),
        (lambda n: 1e9 if 10 <= n < 20 else falling(n), "synthetic", "inconclusive"),
        (lambda n: 8.0 if n == 12 else falling(n), "text", "pass"),  # a bad batch
        (lambda n: 5.0 * 1.5**n, "synthetic", "fail"),
    ],
)
def test_loss_trend(loss: Callable[[int], float], data: str, status: str) -> None:
    spec = make_spec(data=data)
    assert check(judged(whole_run(spec, loss=loss), spec), "loss trend").status == status


def test_a_jump_of_the_loss_is_named() -> None:
    spec = make_spec()
    found = check(judged(whole_run(spec, loss=lambda n: 900.0 if n == 17 else falling(n)), spec), "loss trend")
    assert found.sentence == "The loss spikes to 900 at step 17."


def test_a_loss_that_leaves_where_it_had_settled_is_not_passed() -> None:
    spec = make_spec(steps=60)
    for end in (lambda n: 4.0 if n > 56 else falling(n), lambda n: 6.5 if n == 59 else falling(n)):
        found = judged(whole_run(spec, loss=end), spec)
        assert found.outcome == "inconclusive"
        assert "far above" in found.headline
    noisy = random.Random(3)
    for _ in range(50):  # a small batch: noise of a third of the loss
        assert judged(whole_run(spec, loss=lambda n: falling(n) * noisy.uniform(0.67, 1.33)), spec).outcome == "pass"


def test_losses_that_are_no_longer_printed_and_evaluations_that_are_nan_fail() -> None:
    spec = make_spec(processes=2, steps=200)
    sound = whole_run(spec)
    for process in (0, 1):
        for last, outcome in ((198, "fail"), (199, "inconclusive")):
            run = [
                _with(e, loss=None) if isinstance(e, events.Step) and e.process == process and e.step >= last else e
                for e in sound
            ]
            assert judged(run, spec).outcome == outcome
    nan = events.Eval(step=20, loss=math.nan, wall_time=sound[60].wall_time)
    assert judged(recording.merge([sound, [nan]]), spec).outcome == "fail"


def test_a_gradient_that_overflowed_in_a_skipped_step_was_not_applied() -> None:
    spec = make_spec()
    sound = whole_run(spec)

    def overflows(skipped: float) -> list[events.Event]:
        found = {"grad_norm": math.inf, "reported": {"skipped_steps": skipped}}
        return [_with(e, **found) if isinstance(e, events.Step) and e.step == 0 else e for e in sound]

    assert check(judged(overflows(1.0), spec), "gradient finite").status == "pass"
    assert check(judged(overflows(0.0), spec), "gradient finite").status == "fail"


def test_a_few_steps_have_no_trend() -> None:
    spec = make_spec(steps=8)
    found = judged(whole_run(spec, loss=rising), spec)
    assert check(found, "loss trend").status == "not_applicable"
    assert found.outcome == "pass"


# --- performance ---


@pytest.mark.parametrize(
    ("metric", "measured", "good", "bad"),
    [
        (TOKENS, 1024.0, 1000.0, 1100.0),
        ("step_seconds", 0.5, 0.5, 0.47),
        ("tflops_per_second_per_device", 1024 * 737_280 / 1e12, 0.00075, 0.0008),
        ("mfu", 1024 * 737_280 / 989e12, 7.6e-7, 8.1e-7),
        ("memory_fraction", 0.5, 0.5, 0.47),
    ],
)
def test_each_metric_has_its_direction(metric: str, measured: float, good: float, bad: float) -> None:
    assert metric in METRICS
    memory = {"argument_bytes": 30 * 2**30, "output_bytes": 0, "temp_bytes": 9 * 2**30, "code_bytes": 2**30}
    for expected, status in ((good, "pass"), (bad, "fail")):
        spec = expecting(metric, expected)
        found = check(judged([started(spec, memory=memory), *steps(spec), ended()], spec), metric)
        assert found.measured == pytest.approx(measured)
        assert found.status == status, found.sentence
        assert found.unit == METRICS[metric].unit


def test_tolerance() -> None:
    for given, own, status in ((0.05, None, "fail"), (0.10, None, "pass"), (0.05, 0.10, "pass"), (0.10, 0.0, "fail")):
        spec = expecting(TOKENS, 1100, own)
        found = judged(whole_run(spec), spec, tolerance=given)
        assert check(found, TOKENS).status == status
        assert found.tolerance == given
    sentence = check(judged(whole_run(spec), spec), TOKENS).sentence
    assert sentence == "1,024 tokens/s; target ≥ 1,100 tokens/s (1,100 with 0% tolerance)."


def test_noise_too_few_steps_or_a_bound_inside_the_interval_decide_nothing() -> None:
    rng = random.Random(3)
    noisy, short, close = expecting(TOKENS, 950), expecting(TOKENS, 500, steps=12), expecting(TOKENS, 1024, 0.0)
    drifting = expecting(TOKENS, 2500)
    for spec, seconds, doubt in (
        (noisy, lambda n: rng.uniform(0.3, 0.7), "vary by"),
        (short, lambda n: 0.5, "only 9 steps count"),
        (close, lambda n: 0.5 + 0.01 * math.sin(5 * n), "within the 95% interval"),
        (drifting, lambda n: 0.5 * 0.96**n, "never became steady"),
        (noisy, lambda n: 0.5 if n % 5 < 2 else None, "only 12 of 30 steps have a time"),
    ):
        found = judged(whole_run(spec, seconds=seconds), spec)
        assert found.outcome == "inconclusive"
        assert any(doubt in line for line in check(found, TOKENS).evidence), check(found, TOKENS).evidence


def test_neither_an_outlier_nor_noise_far_from_the_bound_leaves_it_open() -> None:
    rng = random.Random(3)
    sure, far = expecting(TOKENS, 1024, steps=40), expecting(TOKENS, 10)
    for spec, seconds in (
        (sure, lambda n: 9999.0 if n == 20 else 0.5 * rng.uniform(0.99, 1.01)),
        (far, lambda n: rng.uniform(0.3, 0.7)),
        (far, lambda n: 0.5 * 0.96**n),
    ):
        found = judged(whole_run(spec, seconds=seconds), spec)
        assert found.outcome == "pass", check(found, TOKENS)
    slow = expecting(TOKENS, 1e6)
    assert judged(whole_run(slow, seconds=lambda n: rng.uniform(0.3, 0.7)), slow).outcome == "fail"


def test_a_slow_rank_is_not_hidden_by_the_one_that_counts() -> None:
    spec = expecting("step_seconds", 0.5, processes=2)
    slow = [_with(e, seconds=0.6) if isinstance(e, events.Step) and e.process else e for e in whole_run(spec)]
    found = judged(slow, spec)
    assert found.outcome == "inconclusive"
    assert "rank 1 is 20.0% slower" in found.headline


def test_an_expectation_that_cannot_be_measured_is_not_met() -> None:
    spec = expecting("mfu", 0.4)
    found = judged([started(spec, device_kind="cpu"), *steps(spec), ended()], spec)
    assert (found.outcome, check(found, "mfu").measured) == ("fail", None)
    assert check(found, "mfu").sentence == (
        "Not measured: no peak is known for 'cpu'; target ≥ 38.00% (40% with 5% tolerance)."
    )


@pytest.mark.parametrize("word", ["rehearsal", "collapsed run"])
def test_a_rehearsal_is_not_judged_by_its_speed(word: str) -> None:
    spec = expecting(TOKENS, 1e9)
    found = judged(whole_run(spec), spec, rehearsal=word)
    assert (found.outcome, found.axes["performance"].status) == ("pass", "not_applicable")
    assert check(found, "speed").sentence == f"Not judged: a {word}'s speed says nothing about the cluster."
    assert check(found, "speed").evidence == ("target on the cluster: Tokens/s per device 1,000,000,000 tokens/s",)
    assert found.headline.endswith(f"Speed was not judged: this was a {word}.")


def test_mutilated_runs_never_pass() -> None:
    """A sound run with one thing wrong is never passed, whatever and wherever it is."""
    rng = random.Random(13)
    spec = expecting(TOKENS, 1024, steps=40)
    sound = whole_run(spec, seconds=lambda n: 0.5 * rng.uniform(0.99, 1.01))
    assert judged(sound, spec).outcome == "pass"
    body = [event for event in sound if isinstance(event, (events.RunStarted, events.Step))]
    for _ in range(200):
        at = rng.randrange(1, len(body))
        factor = rng.choice([1.2, 1.5, 4.0])
        wrong = rng.choice(
            [
                body[:at],
                body[: at - 1] + body[at:] if at < len(body) - 1 else body[:at],
                [_with(e, loss=math.nan) if n == at else e for n, e in enumerate(body)],
                [_with(e, loss=None) if n > at // 2 else e for n, e in enumerate(body)],
                [_with(e, seconds=getattr(e, "seconds", 0) * factor) for e in body],
                body[:at] + body[: at - 1],
            ]
        )
        assert judged(wrong, spec).outcome != "pass"


def test_a_number_that_is_none_is_never_passed_wherever_it_stands() -> None:
    spec = expecting(TOKENS, 1024, steps=40)
    sound = [_with(e, reported=dict.fromkeys(("loss_scale", "params_norm"), 1.0)) for e in whole_run(spec)]
    assert judged(sound, spec).outcome == "pass"
    numbers = ("seconds", "loss", "grad_norm", "learning_rate", "data_seconds")
    for bad in (math.nan, math.inf):
        changes = [{name: bad} for name in numbers] + [{"reported": {name: bad}} for name in events.REPORTED]
        for change in changes:
            at = 7 * len(str(change)) % 40
            run = [_with(e, **change) if getattr(e, "step", -1) == at else e for e in sound]
            assert judged(run, spec).outcome == "fail", change


def _with(event: events.Event, **changes: Any) -> events.Event:
    return type(event)(**{**vars(event), **changes}) if isinstance(event, events.Step) else event


# --- the file ---


def test_the_file_holds_everything() -> None:
    spec = expecting(TOKENS, 1024)
    for run in (whole_run(spec), whole_run(spec, loss=lambda n: math.nan), []):
        found = judged(run, spec)
        data = json.loads(json.dumps(verdict.to_dict(found), allow_nan=False))
        assert list(data) == ["v", "outcome", "exit_code", "headline", "axes", "tolerance", "convention"]
        assert (data["v"], data["exit_code"]) == (1, found.exit_code)
        assert list(data["axes"]) == ["completion", "numerics", "performance"]
        assert data["axes"]["numerics"]["status"] == found.axes["numerics"].status
        assert verdict.from_dict(data) == found


def test_values_for_a_reader() -> None:
    shown = [show(v) for v in (0, 0.0, 7, 0.721, 7.908, 66298.43, 460.45, 46.0, 1e-4, 0.00123456, -3.25, None, "x")]
    assert shown == [
        "0", "0", "7", "0.721", "7.908", "66,298", "460.4", "46", "0.0001", "0.00123", "-3.250", "not reported", "x",
    ]  # fmt: skip
    assert show(0.4654, "fraction") == "46.54%"
    assert show(math.nan, "s") == "nan s"
    assert show(math.inf) == "inf"
