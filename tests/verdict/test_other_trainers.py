"""Verdicts on logs whose loss or speed is another kind of figure than a cross-entropy and a step time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from seatrial import logs
from seatrial.metrics import measure
from seatrial.verdict import Check, Verdict, judge


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
