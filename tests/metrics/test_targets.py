"""Speed against what the configuration expects: the interval decides, and a slower run never does better."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from seatrial import events
from seatrial.metrics import Performance, records
from seatrial.metrics.performance import measure_performance
from seatrial.spec import Batch, Expectation, RunSpec, Topology
from seatrial.spec.presets import MODELS
from seatrial.verdict import Check
from seatrial.verdict.performance import judge_performance
from tests.helpers.streams import make_spec, steps

TOKENS = "tokens_per_second_per_device"


def measured(run: Sequence[events.Event], spec: RunSpec | None) -> Performance:
    return measure_performance(run, spec, records(run))


def judged(run: Sequence[events.Event], spec: RunSpec | None, *, tolerance: float = 0.05) -> list[Check]:
    return judge_performance(measured(run, spec), spec, rehearsal="", dropped=(), tolerance=tolerance)


def expecting(metric: str, value: float, tolerance: float | None = None, **changes: Any) -> RunSpec:
    return make_spec(expectations=[Expectation(metric=metric, value=value, tolerance=tolerance)], **changes)


def status(seconds: Callable[[int], float | None], spec: RunSpec) -> str:
    (found,) = judged(steps(spec, seconds=seconds), spec)
    return found.status


def test_a_slow_down_beyond_the_tolerance_is_caught_and_one_within_is_not() -> None:
    rng = random.Random(1)
    for tolerance in (0.0, 0.02, 0.05):
        spec = expecting("step_seconds", 0.5, tolerance, steps=60)
        for slower in (0.01, 0.03, 0.05, 0.10):
            noise = {n: rng.lognormvariate(0, 0.004) for n in range(60)}
            found = status(lambda n, s=slower, m=noise: 0.5 * (1 + s) * m[n], spec)
            if slower >= tolerance + 0.01:
                assert found == "fail"
            elif slower <= tolerance - 0.01:
                assert found == "pass"
            else:
                assert found != "pass" or slower <= tolerance


@pytest.mark.parametrize("metric", ["step_seconds", TOKENS])
def test_a_target_is_left_open_where_the_engine_did_not_get_a_key_that_bears_on_it(metric: str) -> None:
    spec = expecting(metric, 0.5 if metric == "step_seconds" else 1024.0)
    run = steps(spec, seconds=lambda n: 0.3)
    names = [f"key_{number}" for number in range(10)]
    (found,) = judge_performance(measured(run, spec), spec, rehearsal="", dropped=names, tolerance=0.05)
    assert found.status == "inconclusive"
    assert "the engine did not get key_0, key_1" in found.evidence[0]
    assert "and 2 more" in found.evidence[0]


def test_a_faster_run_passes() -> None:
    for metric, value in (("step_seconds", 0.5), (TOKENS, 1024.0)):
        assert status(lambda n: 0.3, expecting(metric, value, 0.0)) == "pass"


def test_one_checkpoint_that_is_not_told_turns_no_healthy_run_inconclusive() -> None:
    spec = expecting("step_seconds", 0.5, steps=60)
    (found,) = judged(steps(spec, seconds=lambda n: 40.0 if n == 30 else 0.5 + n % 3 / 1000), spec)
    assert found.status == "pass"
    assert any("slow steps, up to 40 s: step 30; they cost" in line for line in found.evidence)


@pytest.mark.parametrize(
    ("every", "seconds", "expected"),
    [
        (10, 1.5, "inconclusive"),
        (3, 0.75, "inconclusive"),
        (40, 40.0, "pass"),
        (10, 0.55, "pass"),
        (3, 0.6, "inconclusive"),
    ],
)
def test_slow_steps_again_and_again_do_not_hide_behind_the_median(every: int, seconds: float, expected: str) -> None:
    spec = expecting("step_seconds", 0.5, steps=80)
    assert status(lambda n: seconds if n % every == 2 else 0.5 + n % 3 / 1000, spec) == expected


def test_a_run_that_drifts_over_the_bar_is_inconclusive_and_drift_is_always_named() -> None:
    spec = expecting("step_seconds", 0.5, 0.0, steps=90)

    def drifting(first: float, last: float) -> Check:
        (found,) = judged(steps(spec, seconds=lambda n: first + (last - first) * n / 90 + n % 4 / 1000), spec)
        return found

    near, slow, fast = drifting(0.45, 0.52), drifting(0.6, 0.9), drifting(0.3, 0.4)
    assert near.status == "inconclusive"
    assert (slow.status, fast.status) == ("fail", "pass")
    assert any(line.startswith("the run ends slower than the target: 0.51") for line in near.evidence)
    assert any(line.endswith("s in the last third") for line in near.evidence)
    for found in (near, slow, fast):
        assert any(line.startswith("the run became slower") for line in found.evidence)


def test_a_run_that_ends_slower_than_its_target_is_no_plain_pass_however_little_it_drifts() -> None:
    """The median meets the target with 2 % tolerance, the last third does not: a drift of less than 3 %."""
    rng = random.Random(4)
    spec = expecting("step_seconds", 0.5, 0.02, steps=120)
    noise = [rng.lognormvariate(0, 0.003) for _ in range(120)]
    (found,) = judged(steps(spec, seconds=lambda n: 0.5 * (0.995 + 0.04 * n / 120) * noise[n]), spec)
    assert found.status == "inconclusive"
    assert found.evidence[0].startswith("the run ends slower than the target: 0.51")
    assert any(line.startswith("the run became slower") and "(+2." in line for line in found.evidence)
    wide = expecting("step_seconds", 0.5, 0.05, steps=120)
    (found,) = judged(steps(wide, seconds=lambda n: 0.5 * (0.995 + 0.04 * n / 120) * noise[n]), wide)
    assert found.status == "pass"
    assert not any("became slower" in line for line in found.evidence)


def test_a_shift_is_named_with_its_step_wherever_it_is_read() -> None:
    rng = random.Random(5)
    noise = [rng.lognormvariate(0, 0.005) for _ in range(100)]
    spec = expecting("step_seconds", 0.53, 0.0, steps=100)
    (found,) = judged(steps(spec, seconds=lambda n: (0.548 if n >= 71 else 0.5) * noise[n]), spec)
    assert found.status == "inconclusive"
    assert found.evidence[0].startswith("the run ends slower than the target: 0.54")
    assert found.evidence[0].endswith("from step 71")
    assert any(re.match(r"slower by 9\.\d% from step 71 \(0\.\d+ s to 0\.54\d s\)$", line) for line in found.evidence)
    (even,) = judged(steps(spec, seconds=lambda n: 0.5 * noise[n]), spec)
    assert even.status == "pass"
    assert not any("from step" in line for line in even.evidence)


def test_what_was_fast_before_the_run_became_slow_is_no_warm_up() -> None:
    spec = expecting("step_seconds", 0.5, 0.05, steps=60)
    (found,) = judged(steps(spec, seconds=lambda n: (0.5 if n < 20 else 0.6) + n % 3 / 1000), spec)
    assert found.status == "fail"
    assert any("0.501 s in the first third, 0.601 s in the last, of all steps" in line for line in found.evidence)
    compiling = make_spec(steps=60)
    (found,) = judged(steps(compiling, seconds=lambda n: 2.0 if n < 20 else 0.5), compiling)
    assert not any("became" in line for line in found.evidence)


def test_few_lines_are_inconclusive_however_many_steps_they_stand_for() -> None:
    spec = expecting("step_seconds", 0.5, steps=100)
    run = [step for step in steps(spec, first=1, last=100) if step.step % 10 == 0]
    (found,) = judged(run, spec)
    assert found.status == "inconclusive"
    assert found.evidence[0] == "only 7 steps count; 10 are needed"


def test_two_speeds_in_turn_are_named() -> None:
    spec = expecting("step_seconds", 0.5, steps=60)
    (found,) = judged(steps(spec, seconds=lambda n: 0.4 if n % 2 else 0.8), spec)
    assert found.status == "inconclusive"
    assert any(line.startswith("two speeds in turn: 0.400 s and 0.800 s") for line in found.evidence)


def test_what_is_not_measured_fails_and_without_a_target_or_a_configuration_nothing_is_judged() -> None:
    spec = expecting("mfu", 0.4, device=None)
    (found,) = judged(steps(spec), spec)
    assert (found.status, found.sentence.split(":")[0]) == ("fail", "Not measured")
    for config, why in ((make_spec(), "no performance target is set"), (None, "no configuration to compare it with")):
        (found,) = judged(steps(make_spec()), config)
        assert found.status == "not_applicable"
        assert why in found.sentence


def test_making_every_step_slower_never_helps() -> None:
    rng = random.Random(2)
    for _ in range(40):
        metric, value = rng.choice([("step_seconds", 0.5), (TOKENS, 1024.0), ("mfu", 7.6e-7)])
        spec = expecting(metric, value, rng.choice([0.0, 0.02, 0.05]), steps=rng.randrange(8, 60))
        noise, trend = rng.choice([0.0, 0.002, 0.02, 0.2]), rng.choice([0.0, 0.0, 0.002, -0.002])
        base = {n: 0.5 * rng.uniform(0.9, 1.1) * rng.lognormvariate(trend * n, noise) for n in range(spec.steps)}
        factors = (0.8, 0.95, 1.0, 1.03, 1.06, 1.3, 3.0)
        found = [status(lambda n, f=factor, b=base: b[n] * f, spec) for factor in factors]
        assert found[-1] != "pass"
        failed = found.index("fail") if "fail" in found else len(found)
        assert "pass" not in found[failed:]


LLAMA_8B = make_spec(
    steps=40,
    model=MODELS["llama3.1-8b"],
    batch=Batch(sequence_length=8192, global_batch_size=128, micro_batch_size=2),
    topology=Topology(num_nodes=1, devices_per_node=8, device="mi300x"),
    expectations=[
        Expectation(metric=TOKENS, value=6500.0),
        Expectation(metric="step_seconds", value=12.0),
    ],
)


def test_a_run_that_meets_both_of_two_targets_that_differ_passes_and_is_told_so() -> None:
    run = [
        replace(step, seconds=10.922, reported={TOKENS: 12_001.0})
        for step in steps(LLAMA_8B, loss=lambda n: 5 - n / 50)
    ]
    figures, tokens, time = judged(run, LLAMA_8B)
    assert [c.status for c in (figures, tokens, time)] == ["pass", "pass", "pass"]
    assert figures.axis == "numerics"
    told = "the targets differ: 6,500 tokens/s is a step of 20.16 s, 12 s one of 12 s"
    assert told in tokens.evidence
    slow = [replace(step, seconds=20.165, reported={TOKENS: 6500.1}) for step in run]
    assert [c.status for c in judged(slow, LLAMA_8B)] == ["pass", "pass", "fail"]


def test_a_log_of_another_batch_or_model_is_not_passed() -> None:
    run = steps(LLAMA_8B, seconds=lambda n: 10.922)
    half = [replace(step, reported={TOKENS: 6000.0}) for step in run]
    smaller = [replace(step, reported={"tflops_per_second_per_device": 100.0}) for step in run]
    other = [replace(step, reported={"global_batch_size": 64.0}) for step in run]
    for wrong in (half, smaller, other):
        assert judged(wrong, LLAMA_8B)[0].status == "fail"
    unknown = [replace(step, reported={"tflops_per_second_per_device": 800.0}) for step in run]
    assert judged(unknown, LLAMA_8B)[0].status == "inconclusive"


@pytest.mark.parametrize("figure", [TOKENS, "tflops_per_second_per_device", "mfu", "memory_fraction", "seconds"])
def test_a_figure_that_is_not_a_number_is_not_passed(figure: str) -> None:
    for at in (0, 20, 39):
        run = [
            step if step.step != at
            else replace(step, seconds=math.nan) if figure == "seconds" else replace(step, reported={figure: math.nan})
            for step in steps(LLAMA_8B, seconds=lambda n: 10.922)
        ]  # fmt: skip
        assert judged(run, LLAMA_8B)[0].status == "fail"
