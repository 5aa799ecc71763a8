"""Verdicts on logs whose loss or speed is another kind of figure than a cross-entropy and a step time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from seatrial import logs
from seatrial.metrics import measure
from seatrial.verdict import Check, Verdict, judge
from tests.helpers.streams import make_spec


def judged(lines: Sequence[str]) -> Verdict:
    return judge(measure(list(logs.parse(lines)), None), None, rehearsal=False)


def check_of(verdict: Verdict, name: str) -> Check:
    return next(check for axis in verdict.axes.values() for check in axis.checks if check.name == name)


def policy(losses: Sequence[float]) -> list[str]:
    return [
        f"Total training steps: {len(losses)}",
        *(
            f"step:{n} - actor/pg_loss:{loss:.3f} - actor/grad_norm:0.125 - timing_s/step:96.500 - timing_s/gen:70.125"
            for n, loss in enumerate(losses, 1)
        ),
        "'Final validation metrics: None'",
    ]


def test_a_policys_loss_may_be_negative_and_rise() -> None:
    verdict = judged(policy([-0.2 + n / 50 for n in range(30)]))
    assert verdict.outcome == "pass"
    assert check_of(verdict, "loss trend").status == "not_applicable"
    assert "policy loss" in verdict.headline


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_policys_loss_has_to_be_finite(bad: float) -> None:
    verdict = judged(policy([0.1, 0.2, bad, 0.1]))
    assert (verdict.outcome, verdict.headline) == ("fail", f"The loss became {bad} at step 3.")


def test_a_program_that_may_print_no_loss_does_not_fail_for_it() -> None:
    line = "[2023-06-07 09:00:{0:02d},123] [INFO] [logging.py:96:log_dist] [Rank 0] step={0}, skipped=0, lr=[1e-05]"
    verdict = judged([line.format(n) for n in range(1, 31)])
    assert verdict.outcome == "inconclusive"
    assert check_of(verdict, "loss reported").status == "inconclusive"


def test_steps_per_second_are_a_step_time() -> None:
    lines = [
        text
        for n in range(1, 41)
        for text in (
            f"[batch={n}/40]:",
            f"\t Train loss/train/total: {8 - n / 10:.4f}",
            "\t Train throughput/batches_per_sec: 0.1250",
        )
    ]
    found = measure(list(logs.parse(lines)), None).performance.estimates["step_seconds"]
    assert (found.value, found.origin) == (8.0, "from the reported steps/s")


NANOCHAT = [
    "Total batch size 524,288 => gradient accumulation steps: 1",
    *(
        f"step {n:05d}/00030 ({n / 0.3:.2f}%) | loss: {9 - n / 10:.6f} | lrm: 1.00 | dt: 331.20ms | "
        f"tok/sec: 1,583,000 | mfu: 47.10 | total time: 0.10m"
        for n in range(30)
    ),
]
SAVED = "2026-05-04 09:00:41,123 - nanochat.checkpoint_manager - INFO - Saved model parameters to: /out/model_000030.pt"
OVER = "Total training time: 0.16m"
NOT_THERE = "Checkpoint directory /out/sft does not exist."


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        ([SAVED, OVER, NOT_THERE], "pass"),
        ([OVER, NOT_THERE], "teardown_failed"),  # its own may not be there
        ([SAVED.replace("30.pt", "20.pt"), OVER, NOT_THERE], "teardown_failed"),
        ([SAVED, NOT_THERE], "teardown_failed"),  # the run has not said that it is over
        ([SAVED, OVER, "Traceback (most recent call last):", f"FileNotFoundError: {NOT_THERE}"], "teardown_failed"),
        ([SAVED, OVER, "Checkpoint /out/model_000030.pt is corrupt"], "teardown_failed"),
    ],
)
def test_what_a_command_after_the_run_does_not_find(lines: Sequence[str], outcome: str) -> None:
    assert judged([*NANOCHAT, *lines]).outcome == outcome


def golf(steps: int, *, stop: bool, bad: int = 0) -> list[str]:
    """A run of modded-nanogpt's grammar that is planned for more steps than its limit of time leaves it."""

    def loss(n: int) -> float:
        return math.nan if n == bad else 2 + 5 / n

    of = [f"step:{n}/900 train_loss:{loss(n):.4f} train_time:{50 * n}ms step_avg:50.00ms" for n in range(1, steps)]
    last = f"step:{steps}/900 val_loss:{loss(steps):.4f} val_bpb:1.2101 train_time:{50 * steps}ms step_avg:50.00ms"
    stopped = [f"stopping_early: wallclock_cap train_time:{50 * steps}ms step:{steps}/900"] if stop else []
    return [*of, last, *stopped, "peak memory allocated: 9876 MiB reserved: 9900 MiB"]


def test_a_limit_of_time_that_the_trainer_names_is_a_planned_end() -> None:
    verdict = judged(golf(120, stop=True))
    assert verdict.outcome == "pass"
    assert verdict.headline.startswith("Its own limit of time ended the run after 120 of 900 steps, as configured")
    assert judged(golf(120, stop=True, bad=70)).outcome == "fail"
    without = [line for line in golf(120, stop=True) if "step:11" not in line and "val_loss" not in line]
    assert judged(without).headline == "The last step was 109; step 120 was planned."  # its last lines are gone
    assert judged(golf(120, stop=False)).headline == "The last step was 119; step 900 was planned."
    steps = make_spec(steps=900)
    found = judge(measure(list(logs.parse(golf(120, stop=True))), steps), steps, rehearsal=False)
    assert check_of(found, "all steps done").status == "fail"  # a number of steps was asked for


def test_what_the_first_updates_do_to_an_untrained_model_is_no_spike() -> None:
    def course(losses: Sequence[float]) -> Check:
        step = "step:{}/{} train_loss:{:.4f} train_time:9ms step_avg:9.00ms"
        lines = [step.format(n, len(losses), loss) for n, loss in enumerate(losses, 1)]
        return check_of(judged(lines), "loss trend")

    falls = [2.5 + 0.3 / n for n in range(1, 60)]
    assert course([6.9, 14.5, 9.1, 6.4, *falls]).status == "pass"
    assert course([6.9, 14.5, 9.1, 7.0, *falls]).status == "inconclusive"  # it does not come back at once
    assert course([6.9, 6.7, 6.5, 6.4, 14.5, 6.3, *falls]).status == "inconclusive"  # not by the first updates


def epochs(asked: int, done: int, *, of: int = 20, last: int = 20, bad: int = 0) -> list[str]:
    """Lightning's own bar, drawn at each batch, of a run that is said to have done all its epochs."""
    bar = "\rEpoch {0}: {1:3d}%|███       | {1}/{2} [00:04<00:16,  4.20it/s, v_num=3, train_loss={3:.3f}]"
    batches = [(epoch, n) for epoch in range(done) for n in range(1, of + 1) if epoch < done - 1 or n <= last]
    losses = [math.nan if n == bad else 2 + 5 / n for n in range(1, len(batches) + 1)]
    drawn = [bar.format(epoch, n, of, loss) for (epoch, n), loss in zip(batches, losses, strict=True)]
    return [*drawn, f"`Trainer.fit` stopped: `max_epochs={asked}` reached."]


def test_lightning_says_at_its_end_that_all_epochs_are_done() -> None:
    verdict = judged(epochs(3, 3))
    assert (verdict.outcome, verdict.headline[:23]) == ("pass", "Completed all 60 steps,")
    assert judged(epochs(3, 3, bad=30)).outcome == "fail"
    assert judged(epochs(3, 3)[:-1]).outcome == "inconclusive"  # the end is not there
    assert judged(epochs(4, 3)).outcome == "inconclusive"  # the bars of an epoch are not
    assert judged(epochs(3, 3, last=12)).outcome == "inconclusive"


def test_verl_says_how_many_steps_its_epochs_have() -> None:
    bar = "Epoch 1/3:  50%|█████     | 10/20 [00:06<00:06,  3.06s/it]"
    steps = [
        f"step:{n} - train/loss:{2 + 5 / n:.4f} - train/lr(1e-3):0.010 - train/time(s):3.0605" for n in range(1, 61)
    ]
    assert judged([bar, *steps]).headline.startswith("Completed all 60 steps,")
    assert judged([bar, *steps[:40]]).outcome == "fail"
    assert judged(["Total training steps: 40", bar, *steps[:40]]).outcome == "pass"  # which goes first
    other = [f"[{n}/60] step={n} loss={2 + 5 / n:.4f}" for n in range(1, 41)]
    assert judged([bar, *other]).headline == judged(other).headline  # the bar of another program


def reward_model(first: float, last: float) -> list[str]:
    """DeepSpeed-Chat's second stage: it prints no loss of its steps."""
    said = "chosen_last_scores (higher is better) : 2.5, acc (higher is better) : {}"
    steps = [
        f"[2023-05-02 03:{n // 60:02d}:{n % 60:02d},001] [INFO] [logging.py:96:log_dist] [Rank 0] step={n * 10}, "
        "skipped=0, lr=[1e-05, 1e-05], mom=[(0.9, 0.95), (0.9, 0.95)]"
        for n in range(1, 41)
    ]
    return [
        "cmd = deepspeed main.py --gradient_accumulation_steps 1 --num_train_epochs 1",
        said.format(first), "Beginning of Epoch 1/1, Total Micro Batches 400", *steps, said.format(last),
    ]  # fmt: skip


def test_an_accuracy_that_rises_stands_for_losses_that_are_not_printed() -> None:
    for last, outcome in ((0.71, "pass"), (0.495, "fail"), (0.31, "fail")):
        found = judged(reward_model(0.49, last))
        assert (found.outcome == "pass") is (outcome == "pass"), (last, found.headline)
