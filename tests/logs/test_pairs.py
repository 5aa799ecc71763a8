"""The pairs of a step line: losses beside the loss, and numbers with decimal commas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from seatrial import metrics, verdict
from seatrial.verdict import Verdict
from tests.helpers.log_cases import both, steps, values

N = 30


def megatron(step: int, key: str, value: str) -> str:
    return (
        f" iteration {step:8d}/{N:8d} | consumed samples: {step * 16:12d} | elapsed time per iteration (ms): 1000.5 | "
        f"learning rate: 1.000000E-04 | global batch size:    16 | lm loss: {5 - step / 20:.6E} | {key}: {value} | "
        "loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def maxtext(step: int, key: str, value: str) -> str:
    return (
        f"completed step: {step}, seconds: 7.908, TFLOP/s/device: 460.480, Tokens/s/device: 1035.886, "
        f"total_weights: 524288, loss: {5 - step / 20:.3f}, {key}: {value}, main_model_loss: 4.125"
    )


def torchtitan(step: int, key: str, value: str) -> str:
    return (
        f"[titan] 2026-02-24 19:46:{step:02d},508 - root - INFO - step: {step:2d}  loss: {5 - step / 20:8.5f}  "
        f"{key}: {value}  grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%"
    )


def nemo(step: int, key: str, value: str) -> str:
    return (
        f"Training epoch 0, iteration {step}/{N} | lr: 7.5e-06 | global_step: {step} | "
        f"reduced_train_loss: {5 - step / 20:.3f} | {key}: {value} | train_step_timing in s: 12.39"
    )


def nemo_bar(step: int, key: str, value: str) -> str:
    return (
        f"Epoch 0: : 100%|████| {step + 1}/{N} [16:26<00:00, v_num=gjbq, loss=nan, {key}={value}, "
        f"reduced_train_loss={5 - step / 20:.3f}, global_step={step}.00, train_step_timing in s=12.40]"
    )


def hugging_face(step: int, key: str, value: str) -> str:
    return (
        f"{{'loss': {5 - step / 20:.4f}, 'grad_norm': 1.25, '{key}': {value}, 'learning_rate': 1e-05, 'step': {step}}}"
    )


def nanotron(step: int, key: str, value: str) -> str:
    return (
        f"iteration: {step} / {N} | consumed_tokens: 25.2M | elapsed_time_per_iteration_ms: 2.53K | "
        f"lm_loss: {5 - step / 20:.3f} | {key}: {value} | lr: 0.0003 | grad_norm: 1.2"
    )


def judged(lines: Sequence[str]) -> Verdict:
    return verdict.judge(metrics.measure(both(lines), None), None, rehearsal=False)


Line = Callable[[int, str, str], str]


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("line", "key"),
    [
        (megatron, "load_balancing_loss"), (megatron, "z_loss"), (megatron, "mtp_1 loss"), (megatron, "sop loss"),
        (megatron, "loss"), (maxtext, "moe_lb_loss"), (maxtext, "lm_loss"), (torchtitan, "moe_aux_loss"),
        (torchtitan, "mtp_1_loss"), (nemo, "load_balancing_loss"), (nemo_bar, "mtp_loss"), (hugging_face, "aux_loss"),
        (hugging_face, "loss/policy"), (nanotron, "z_loss"),
    ],
)  # fmt: skip
def test_a_loss_beside_the_loss_that_is_not_finite_fails(line: Line, key: str, bad: str) -> None:
    found = judged([line(step, key, bad if step in (20, 21) else "1.234") for step in range(1, N + 1)])
    (check,) = [check for check in found.axes["numerics"].checks if check.name == "loss finite"]
    assert (found.outcome, check.status) == ("fail", "fail")
    assert f"{key} is {bad} at steps 20–21." in check.sentence
    assert f"{key} became {bad} at step 20." in found.headline
    assert [each.name for each in found.axes["numerics"].checks if each.status == "fail"] == ["loss finite"]


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (megatron, "z_loss", "1.234"), (megatron, "lossless ratio", "nan"), (torchtitan, "mfu_of_last", "nan"),
        (nemo_bar, "mtp_loss", "1.234"), (hugging_face, "rewards/margins", "1.5"),
    ],
)  # fmt: skip
def test_what_is_finite_or_no_loss_does_not_fail(line: Line, key: str, value: str) -> None:
    found = judged([line(step, key, value) for step in range(1, N + 1)])
    assert [check.name for check in found.axes["numerics"].checks if check.status == "fail"] == []


def test_a_loss_that_is_not_finite_itself_is_what_is_named() -> None:
    found = judged([maxtext(step, "lm_loss", "nan").replace(" loss: 4.000", " loss: nan") for step in range(1, N + 1)])
    assert found.headline == "The loss became nan at step 20."


def test_decimal_commas_are_read_for_what_they_are() -> None:
    log = [megatron(step, "z_loss", "1.234").replace(".", ",") for step in range(1, N + 1)]
    points = [megatron(step, "z_loss", "1.234") for step in range(1, N + 1)]
    assert [values(step) for step in steps(both(log))] == [values(step) for step in steps(both(points))]
    assert steps(both(log))[3].loss == 4.8


def test_a_count_that_may_be_thousands_or_a_fraction_is_not_read() -> None:
    """Of a line with decimal commas, 10,050 tokens/s could be 10 050 or 10.05."""
    (step,) = steps(both([torchtitan(7, "aux_loss", "1.0").replace(".", ",")]))
    assert (step.loss, step.grad_norm) == (4.65, 26.625)
    assert step.reported["tflops_per_second_per_device"] == 314.71
    assert "tokens_per_second_per_device" not in step.reported
    (step,) = steps(both([torchtitan(7, "aux_loss", "1.0")]))
    assert step.reported["tokens_per_second_per_device"] == 10_050


def test_a_line_in_which_every_comma_could_be_of_thousands_has_no_loss_of_thousands() -> None:
    line = "completed step: 7, seconds: 7,908, TFLOP/s/device: 460,480, Tokens/s/device: 517,943, loss: 9,877"
    (step,) = steps(both([line]))
    assert (step.seconds, step.loss) == (7.908, 9.877)
    assert step.reported == {"tflops_per_second_per_device": 460.48}


def test_a_line_with_both_kinds_of_commas_is_read_where_it_is_clear() -> None:
    line = megatron(7, "z_loss", "1.0").replace("lm loss: 4.650000E+00", "lm loss: 4,650000E+00")
    (step,) = steps(both([line.replace("grad norm: 1.250", "grad norm: 1,250")]))
    assert (step.loss, step.grad_norm, step.seconds) == (4.65, None, 1.0005)


def test_an_evaluation_with_a_decimal_comma_is_not_of_thousands() -> None:
    from seatrial.events import Eval

    said = [
        "eval metrics after step: 9, loss=9,877, total_weights=8",
        " validation loss at iteration 9 | lm loss value: 2,478E+00 |",
    ]
    assert [event.loss for event in both(said) if isinstance(event, Eval)] == [9.877, 2.478]


def test_commas_between_thousands_stay_what_they_are() -> None:
    line = (
        megatron(7, "z_loss", "1.0").replace("1000.5", "12,345.5").replace("grad norm: 1.250", "grad norm: 1,250.125")
    )
    (step,) = steps(both([line]))
    assert (step.seconds, step.grad_norm) == (12.3455, 1250.125)
    assert math.isclose(step.loss or 0, 4.65)
