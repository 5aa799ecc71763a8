"""The loss and the gradient of logs from other trainers: each rule by itself, with the answer of the verdict."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from seatrial import events, recording
from seatrial.metrics import Numerics, records
from seatrial.metrics.numerics import measure_numerics
from seatrial.spec import Data, RunSpec
from seatrial.verdict import Check
from seatrial.verdict.numerics import judge_numerics
from tests.helpers.streams import falling, make_spec, steps

SPEC = make_spec(steps=100)


def measured(run: list[events.Event]) -> Numerics:
    return measure_numerics(records(run))


def log(change: Callable[[int], dict[str, Any]], process: int = 0, **of_steps: Any) -> list[events.Event]:
    run = steps(SPEC, process, **of_steps)
    return [replace(step, **change(step.step)) for step in run]


def with_losses(losses: Sequence[float]) -> list[events.Event]:
    """A run of as many steps, whose losses are these."""
    return log(lambda n: {"loss": losses[n]}, last=len(losses) - 1)


def check(run: list[events.Event], name: str, spec: RunSpec | None = SPEC) -> Check:
    (match,) = [check for check in judge_numerics(measured(run), spec) if check.name == name]
    return match


def skipping(skips: Callable[[int], float]) -> Callable[[int], dict[str, Any]]:
    """Megatron's line of a step that the loss scale skipped has no loss."""
    return lambda n: {"reported": {"skipped_steps": skips(n)}} | ({"loss": None} if skips(n) else {})


def test_skips_in_search_of_a_loss_scale_are_normal() -> None:
    run = log(skipping(lambda n: float(n < 17)))
    found = measured(run)
    assert (found.initial_skips, found.later_skips, found.num_expected, found.num_losses) == (17, 0, 83, 83)
    assert check(run, "loss reported").status == "pass"
    assert check(run, "steps skipped").status == "pass"
    assert "17 in search of a loss scale" in check(run, "steps skipped").sentence


@pytest.mark.parametrize(
    ("later", "status"), [((50,), "pass"), ((50, 60, 70), "inconclusive"), (tuple(range(40, 50)), "fail")]
)
def test_skips_after_that_are_not(later: tuple[int, ...], status: str) -> None:
    run = log(lambda n: {"reported": {"skipped_steps": float(n < 3 or n in later)}})
    assert check(run, "steps skipped").status == status


def test_a_log_of_every_tenth_step_counts_all_ten() -> None:
    run = [step for step in log(lambda n: {"reported": {"skipped_steps": 6.0 * (n == 50)}}) if step.step % 10 == 0]
    found = measured(run)
    assert (found.later_skips, found.steps_covered) == (6, 100)
    assert check(run, "steps skipped").status == "fail"


def test_a_loss_scale_that_is_never_found_fails() -> None:
    assert check(log(skipping(lambda n: float(n < 60))), "steps skipped").status == "fail"
    assert check(log(skipping(lambda n: 1.0)), "loss reported").status == "fail"


def test_a_loss_that_is_missing_without_a_word_of_skips_is_missing() -> None:
    run = log(lambda n: {"loss": None} if n < 5 else {})
    assert check(run, "loss reported").status == "fail"
    late = log(lambda n: {"reported": {"skipped_steps": float(n < 3)}} | ({"loss": None} if n > 90 else {}))
    assert check(late, "loss reported").status == "fail"


def test_steps_that_the_framework_counts_as_nan_fail() -> None:
    run = log(lambda n: {"reported": {"nan_steps": float(n == 40), "skipped_steps": 0.0}})
    assert check(run, "steps skipped").status == "fail"
    assert [c.name for c in judge_numerics(measured(log(lambda n: {})), SPEC)].count("steps skipped") == 0


def test_a_loss_scale_that_collapses_fails_and_one_that_is_fixed_does_not() -> None:
    def scaled(n: int) -> dict[str, Any]:
        return {"reported": {"loss_scale": max(1.0, 2.0 ** (16 - n)), "skipped_steps": float(n == 5)}}

    assert check(log(scaled), "steps skipped").status == "fail"
    fixed = log(lambda n: {"reported": {"loss_scale": 1.0, "skipped_steps": 0.0}})
    assert check(fixed, "steps skipped").status == "pass"


def test_the_loss_comes_from_the_lowest_process_that_reports_one() -> None:
    first = log(lambda n: {"loss": None})  # the first stage of a pipeline
    last = log(lambda n: {}, process=3)
    run = recording.merge([first, last])
    found = measured(run)
    assert (found.loss_process, found.num_losses, found.num_comparable) == (3, 100, 0)
    assert check(run, "loss reported").status == "pass"
    assert check(run, "loss trend").status == "pass"
    assert check(run, "processes agree").status == "not_applicable"
    assert check(first, "loss reported").status == "fail"
    assert check(first, "loss reported").sentence == "No process reports a loss."
    other = recording.merge([first, last, log(lambda n: {"loss": falling(n) * 1.1}, process=2)])
    assert check(other, "processes agree").status == "fail"


ON_SYNTHETIC = replace(SPEC, data=Data(kind="synthetic"))


def memorised(n: int) -> float:
    return round(10.4 * 0.8**n, 3)


@pytest.mark.parametrize(
    ("loss", "text", "synthetic", "unknown"),
    [
        (lambda n: 0.0, "fail", "fail", "fail"),
        (memorised, "fail", "not_applicable", "inconclusive"),
        (lambda n: 0.0 if n == 99 else memorised(n // 4), "fail", "not_applicable", "inconclusive"),
        (lambda n: 0.0 if n > 40 else falling(n), "fail", "inconclusive", "inconclusive"),
        (lambda n: 0.0 if n == 30 else falling(n), "fail", "inconclusive", "inconclusive"),
        (lambda n: 5.0, "fail", "inconclusive", "inconclusive"),
        (lambda n: 5.0 + 0.01 * math.sin(7 * n), "inconclusive", "not_applicable", "inconclusive"),
        (falling, "pass", "pass", "pass"),
        # Memorised to float32's rounding: one of 1e-7 among those of 3e-8 is no spike.
        (lambda n: 4.1 / 10 ** (2 * n) if n < 5 else (0.0, 9.7e-8, 3e-8)[min(n % 7, 2)], "fail", "not_applicable",
         "inconclusive"),
        (lambda n: 1e3 if n == 50 else memorised(n), "fail", "inconclusive", "inconclusive"),
        (lambda n: memorised(n) if n < 90 else 8.0 + n, "fail", "fail", "fail"),
    ],
)  # fmt: skip
def test_a_loss_of_0(loss: Callable[[int], float], text: str, synthetic: str, unknown: str) -> None:
    run = log(lambda n: {}, loss=loss)
    found = [check(run, "loss trend", spec).status for spec in (SPEC, ON_SYNTHETIC, None)]
    assert found == [text, synthetic, unknown]
    assert check(run, "loss trend", replace(SPEC, data=Data(kind="records"))).status == text


def test_a_single_loss_of_0_is_not_applicable_on_synthetic_data() -> None:
    line = [events.Step(step=49, seconds=7.908, loss=0.0)]
    assert [check(line, "loss trend", spec).status for spec in (ON_SYNTHETIC, SPEC)] == [
        "not_applicable", "inconclusive",
    ]  # fmt: skip


def test_a_loss_that_rises_from_that_of_guessing_is_named_and_no_plateau_is() -> None:
    """ln(vocabulary) and up by 0.3 %: too little for a rise anywhere else, and no healthy run does it."""
    rng = random.Random(6)
    chance = math.log(SPEC.model.vocab_size)

    def course(start: float, change: float) -> Callable[[int], float]:
        return lambda n: start * (1 + change * n / 100) + rng.gauss(0, 0.002)

    for spec in (SPEC, ON_SYNTHETIC):
        found = check(log(lambda n: {}, loss=course(1.02 * chance, 0.004)), "loss trend", spec)
        assert found.status == "inconclusive"
        assert found.sentence.startswith("The loss rises from ")
        assert "ln(vocabulary)" in found.sentence
    for start, change, spec in (
        (1.02 * chance, 0.0, SPEC),  # a plateau
        (0.3 * chance, 0.004, SPEC),  # fine-tuning, and a warm start
        (1.02 * chance, 0.004, None),
    ):
        found = check(log(lambda n: {}, loss=course(start, change)), "loss trend", spec)
        assert "ln(vocabulary)" not in found.sentence
        assert found.sentence.startswith("The loss stays flat")
    falls = check(log(lambda n: {}, loss=course(1.02 * chance, -0.02)), "loss trend", SPEC)
    assert falls.status == "pass"


def test_a_trend_comes_with_its_p_value() -> None:
    rng = random.Random(5)
    noise = [measured(log(lambda n: {}, loss=lambda n: rng.gauss(5, 0.2))).trend_p or 0.0 for _ in range(100)]
    assert 0.3 < sum(noise) / len(noise) < 0.7
    fell = measured(log(lambda n: {}))
    assert fell.trend_p is not None
    assert fell.trend_p < 1e-6
    assert "by chance" in check(log(lambda n: {}), "loss trend").evidence[0]


def test_a_perplexity_is_exp_of_the_loss() -> None:
    sound = log(lambda n: {"loss": round(falling(n), 3), "reported": {"perplexity": round(math.exp(falling(n)), 3)}})
    assert check(sound, "perplexity").status == "pass"
    wrong = log(lambda n: {"reported": {"perplexity": math.exp(falling(n)) * (1.1 if n == 12 else 1)}})
    assert check(wrong, "perplexity").status == "inconclusive"
    assert "at step 12" in check(wrong, "perplexity").sentence


@pytest.mark.parametrize(
    ("norm", "status"),
    [
        (lambda n: 1.0, "pass"),
        (lambda n: 40.0 if n == 9 else 1.0, "pass"),
        (lambda n: 8.0 * 0.9**n, "pass"),
        (lambda n: 1.0 if n < 60 else 20.0, "inconclusive"),
        (lambda n: 1.1**n, "fail"),
        (lambda n: 0.0, "fail"),
        (lambda n: math.nan if n == 99 else 1.0, "fail"),
        (lambda n: None, "not_applicable"),
    ],
)
def test_the_gradient_norm(norm: Callable[[int], float | None], status: str) -> None:
    assert check(log(lambda n: {}, grad_norm=norm), "gradient finite").status == status


def noisy(num_steps: int, *, noise: float, fall: float, seed: int) -> list[events.Event]:
    """A run whose loss falls by a share of it, and varies by another from batch to batch."""
    made = random.Random(seed)
    run = steps(make_spec(steps=num_steps))
    last = num_steps - 1
    return [replace(step, loss=1.5 * (1 - fall * n / last) * (1 + made.gauss(0, noise))) for n, step in enumerate(run)]


@pytest.mark.parametrize("num_steps", [20, 24, 30])
def test_a_short_run_whose_losses_vary_is_too_short_for_a_trend(num_steps: int) -> None:
    """A fine-tuning that falls by a tenth cannot be told from one that learns nothing: neither is open for that."""
    for fall in (0.0, 0.1):
        runs = [noisy(num_steps, noise=0.1, fall=fall, seed=seed) for seed in range(100)]
        found = [check(run, "loss trend") for run in runs]
        assert sum(each.status == "not_applicable" for each in found) >= 80
        assert sum(each.status in ("fail", "inconclusive") for each in found) <= 3
    assert any(
        "losses are too few for a trend: they vary so much that a fall of less than" in e.sentence for e in found
    )


def test_a_loss_that_hardly_varies_shows_that_nothing_is_learnt() -> None:
    """A model that is trained from scratch and stays at ln(vocabulary), and a longer run."""
    for num_steps, noise in ((24, 0.005), (30, 0.01), (49, 0.01), (50, 0.1), (200, 0.1)):
        found = [check(noisy(num_steps, noise=noise, fall=0.0, seed=seed), "loss trend") for seed in range(50)]
        assert sum(each.status == "inconclusive" for each in found) >= 45, (num_steps, noise)
    assert check(log(lambda _: {"loss": 2.5}), "loss trend").status != "not_applicable"


def test_the_least_fall_that_shows_is_found_nine_times_out_of_ten() -> None:
    """Independent of the formula: of runs that fall by as much between their thirds, the test itself finds 90%."""
    for num_steps, noise in ((24, 0.05), (30, 0.1), (45, 0.1)):
        least = [measured(noisy(num_steps, noise=noise, fall=0.0, seed=seed)).least_fall or 0.0 for seed in range(60)]
        typical = sorted(least)[len(least) // 2]
        third = num_steps // 3
        made, hits = random.Random(7), 0
        for _ in range(200):
            run = steps(make_spec(steps=num_steps))
            run = [
                replace(step, loss=1.5 * (1 - typical * (n >= num_steps - third)) * (1 + made.gauss(0, noise)))
                for n, step in enumerate(run)
            ]
            hits += measured(run).trend == "falling"
        assert 0.75 <= hits / 200 <= 0.99, (num_steps, noise, typical, hits)


def evaluated(losses: list[float], run: list[events.Event]) -> Numerics:
    evals = [events.Eval(process=0, wall_time=9.0 + n, step=10 * n, loss=loss) for n, loss in enumerate(losses)]
    return measure_numerics(records(run), evals)


SILENT = log(lambda _: {"loss": None})


@pytest.mark.parametrize(
    ("losses", "status"),
    [
        ([6.1, 5.2, 4.6, 4.3, 4.1, 4.0], "pass"),
        ([6.1, 5.2, 4.6, 4.3, 4.1], "inconclusive"),  # in order by chance once in 120 times
        ([4.0, 5.2, 4.6, 4.3, 4.1, 4.2, 4.4, 4.0], "inconclusive"),
        ([4.0, 4.1, 4.3, 4.6, 5.2, 6.1], "inconclusive"),
        ([6.1, 5.2, math.nan, 4.3, 4.1, 4.0, 3.9], "inconclusive"),
    ],
)
def test_evaluations_that_fall_stand_for_losses_that_may_be_missing(losses: list[float], status: str) -> None:
    def reported(run: list[events.Event]) -> str:
        (found,) = [each for each in judge_numerics(evaluated(losses, run), None) if each.name == "loss reported"]
        return found.status

    optional = events.RunStarted(process=0, wall_time=0.0, facts={"loss_optional": True})
    assert reported([optional, *SILENT]) == status
    assert reported(SILENT) == "inconclusive"


def test_evaluations_in_no_order_seldom_seem_to_fall() -> None:
    made = random.Random(3)
    drawn = [[made.random() + 3 for _ in range(made.randrange(6, 12))] for _ in range(400)]
    assert sum(evaluated(losses, SILENT).evals_fall for losses in drawn) <= 8  # 1% by chance, with its noise


def test_a_nan_of_an_evaluation_counts_without_steps() -> None:
    assert "fail" in [found.status for found in judge_numerics(evaluated([math.nan], []), None)]


def test_a_burst_in_a_run_that_is_too_short_for_a_trend_is_named() -> None:
    short = make_spec(steps=12)

    def trend(losses: list[float]) -> Check:
        run = [replace(step, loss=loss) for step, loss in zip(steps(short), losses, strict=True)]
        return check(run, "loss trend", None)

    calm = [5.0, 4.9, 4.95, 4.8, 4.7, 4.75, 4.6, 4.5, 4.55, 4.4, 4.35, 4.3]
    assert trend(calm).status in ("pass", "not_applicable")
    assert trend([*calm[:6], 8.1, *calm[7:]]).status == "inconclusive"
    assert trend([*calm[:6], 6.5, *calm[7:]]).status in ("pass", "not_applicable")  # a hard batch


def test_a_0_here_and_there_among_the_last_digits_is_rounded() -> None:
    """As of a classifier whose batches are of 8; where 0 comes more often, or lasts, nothing is left to learn."""
    made = random.Random(4)
    losses = [round(0.2 * 0.97**n + made.uniform(0.0004, 0.004), 4) for n in range(400)]
    for zeros, status in (({250, 301, 302, 360}, "pass"), (set(range(250, 400, 7)), "inconclusive"),
                          ({250, 398, 399}, "inconclusive")):  # fmt: skip
        run = with_losses([0.0 if n in zeros else loss for n, loss in enumerate(losses)])
        assert check(run, "loss trend", None).status == status
    larger = with_losses([0.0 if n == 250 else loss + 0.5 for n, loss in enumerate(losses)])
    assert check(larger, "loss trend", None).status != "pass"


def test_a_loss_that_doubles_within_the_first_losses_of_a_trend_and_falls_back_is_named() -> None:
    """As with a learning rate that is too high; of longer runs the end says more."""
    losses = [
        13.2,
        13.2,
        13.1,
        12.8,
        12.6,
        12.0,
        16.2,
        21.7,
        22.4,
        25.6,
        26.5,
        26.3,
        21.9,
        20.5,
        18.1,
        17.6,
        17.0,
        16.1,
    ]
    found = measured(with_losses(losses))
    assert found.highest_spike == 26.5
    assert check(with_losses(losses), "loss trend", None).status == "inconclusive"


def test_a_loss_that_shot_up_at_once_and_only_fell_back_is_open() -> None:
    run = log(lambda n: {"loss": 2.0 if n == 0 else 4 + 8 * 0.97**n})
    assert check(run, "loss trend").status == "inconclusive"
    assert "but began at 2" in check(run, "loss trend").sentence


def test_a_log_that_ends_in_search_of_a_loss_scale_is_open() -> None:
    run = log(skipping(lambda n: 1.0))[:8]
    assert check(run, "loss reported").status == "inconclusive"


def test_norms_of_0_alone_are_unreported_in_another_trainers_log() -> None:
    """DeepSpeed under Megatron prints 0.0 for each, and its loss falls; ours tells the truth."""
    run = log(lambda n: {}, grad_norm=lambda n: 0.0)
    assert check(run, "gradient finite").status == "fail"
    others = [events.RunStarted(process=0, wall_time=0.0, facts={"family": "megatron"}), *run]
    assert measured(others).num_grad_norms == 0
    flat = [events.RunStarted(process=0, wall_time=0.0, facts={"family": "megatron"})]
    flat += log(lambda n: {"loss": 5.0}, grad_norm=lambda n: 0.0)
    assert check(flat, "gradient finite", None).status == "fail"


@pytest.mark.parametrize(("count", "status"), [(2, "pass"), (3, "inconclusive"), (10, "fail")])
def test_few_norms_of_0_alone_are_doubted(count: int, status: str) -> None:
    run = [events.Step(step=n, seconds=1.0, loss=0.5 + n / 9, grad_norm=0.0) for n in range(count)]
    assert check(run, "gradient finite", None).status == status


@pytest.mark.parametrize(("family", "first"), [("deepspeed", 1), ("maxtext", 0), ("", 0)])
def test_the_loss_before_any_update_shows_no_training(family: str, first: int) -> None:
    facts = {"family": family, "counted_from": first} if family else {}
    started = events.RunStarted(process=0, wall_time=0.0, facts=facts)
    first_step, second = (events.Step(step=first + n, seconds=4.0, loss=11.25 - n) for n in range(2))
    assert check([started, first_step], "loss trend", None).status == "inconclusive"
    assert "before any update" in check([started, first_step], "loss trend", None).sentence
    assert check([started, first_step, second], "loss trend", None).status == "not_applicable"
    assert check([started, second], "loss trend", None).status == "not_applicable"
    evaluated = measure_numerics(records([started, first_step]), [events.Eval(process=0, step=first, loss=10.5)])
    (trend,) = [each for each in judge_numerics(evaluated, None) if each.name == "loss trend"]
    assert trend.status == "not_applicable"


def test_a_noisy_loss_on_its_way_down_has_no_spikes_and_one_that_comes_back_has() -> None:
    noise = random.Random(5)
    losses = [0.8 + 9 * math.exp(-n / 25) * noise.uniform(0.7, 1.4) for n in range(600)]
    run = log(lambda n: {"loss": losses[n]}, last=599)
    assert not measured(run).loss_spikes
    for place in (120, 300, 597):
        spiked = [5.0 if place <= n < place + 12 else loss for n, loss in enumerate(losses)]
        found = measured(with_losses(spiked)).loss_spikes
        assert found == ((place, min(place + 11, 599)),)
    slowly = [{"loss": losses[n] + 4 * math.exp(-(((n - 400) / 60) ** 2))} for n in range(600)]
    assert measured(log(lambda n: slowly[n], last=599)).loss_spikes


def test_what_a_noisy_loss_differs_by_from_step_to_step_is_no_spike_and_far_more_is() -> None:
    noise = random.Random(8)
    losses = [(0.3 + 21 * math.exp(-n / 40)) * math.exp(noise.gauss(0, 0.45)) for n in range(3000)]
    assert not measured(log(lambda n: {"loss": losses[n]}, last=2999)).loss_spikes
    for place, several in ((150, 1), (700, 1), (2000, 1), (700, 10), (2000, 10)):
        high = 30.0 if several == 1 else 2.0
        spiked = [high if place <= n < place + several else loss for n, loss in enumerate(losses)]
        found = measured(with_losses(spiked))
        assert (place, found.highest_spike) == (found.loss_spikes[0][0], high)


@pytest.mark.parametrize(
    ("scale", "skips", "status"),
    [
        (lambda _: 65536.0, 2, "pass"),  # as often as a scale that is doubled every 100 steps overflows
        (lambda n: 2.0 ** (30 - n // 100), 2, "inconclusive"),  # it falls throughout
        (lambda _: None, 2, "inconclusive"),
        (lambda _: 65536.0, 3, "inconclusive"),
        (lambda _: 65536.0, 6, "fail"),
        (lambda n: 64.0 / 2 ** (n // 100), 2, "fail"),  # to less than 1
    ],
)
def test_a_loss_scale_that_comes_back_to_where_it_was_may_skip_steps_in_turn(
    scale: Callable[[int], float | None], skips: int, status: str
) -> None:
    def line(n: int) -> dict[str, Any]:
        skipped = float(n > 0 and n % 100 < skips)
        tried = {} if scale(n) is None or not skipped else {"loss_scale": scale(n)}
        return {"reported": {"skipped_steps": skipped, **tried}}

    assert check(log(line, last=2099), "steps skipped").status == status


def test_what_is_next_to_nothing_is_no_spike() -> None:
    losses = [0.004 + 0.001 * (n % 3) + (0.12 if n % 17 == 0 and n > 90 else 0.0) for n in range(300)]
    assert not measured(with_losses(losses)).loss_spikes
    assert measured(with_losses([10 * loss for loss in losses])).loss_spikes


def test_the_least_rise_of_very_many_losses_is_no_trend() -> None:
    noise = random.Random(4)
    for rise, trend in ((0.02, "flat"), (0.3, "rising")):
        losses = [2.8 + rise * n / 6000 + noise.gauss(0, 0.1) for n in range(6000)]
        assert measured(with_losses(losses)).trend == trend
