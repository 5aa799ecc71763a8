"""Steps with two losses in one log: several ranks or runs have written to it, or a program began again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from seatrial import logs, metrics, verdict
from seatrial.verdict import Check, Verdict

N = 20


def line(step: int, loss: float, total: int = N) -> str:
    return (
        f" iteration {step:8d}/{total:8d} | consumed samples: {step * 16:12d} | elapsed time per iteration (ms): "
        f"{1000 + step % 3}.0 | learning rate: 1.000000E-04 | global batch size:    16 | lm loss: {loss:.6E} | "
        "loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def a(step: int) -> float:
    return 5 - step / 20


def b(step: int) -> float:
    return 4.6 - step / 15


def torchtitan(step: int, loss: float) -> str:
    return (
        f"[titan] 2026-02-24 19:46:{step:02d},508 - root - INFO - step: {step:2d}  loss: {loss:8.5f}  "
        "grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%"
    )


def judged(lines: Iterable[str], tmp_path: Path) -> Verdict:
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return verdict.judge(metrics.measure(logs.read([path]), None), None, rehearsal=False)


def of_losses(found: Verdict) -> Check | None:
    return next((check for check in found.axes["numerics"].checks if check.name == "one loss per step"), None)


def interleaved(ranks: int, print_of: Callable[[int, float], str] = line) -> list[str]:
    return [print_of(step, a(step) + rank / 10) for step in range(1, N + 1) for rank in range(ranks)]


def shuffled(ranks: int) -> list[str]:
    """The ranks do not print in the order of the steps."""
    made = random.Random(3)
    made_of = [
        (step + made.uniform(0, 1.5), line(step, a(step) + rank / 10))
        for step in range(1, N + 1)
        for rank in range(ranks)
    ]
    return [text for _, text in sorted(made_of)]


def two_jobs(behind: int, *, total: int = N, dies_at: int = N + 1) -> list[str]:
    """The second job is some steps behind the first, and may run out of memory."""
    log = []
    for step in range(1, N + 1):
        log.append(line(step, a(step)))
        if 0 < step - behind < dies_at:
            log.append(line(step - behind, b(step - behind), total))
        if step - behind == dies_at:
            log.append("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.63 GiB.")
    return log


@pytest.mark.parametrize(
    "log",
    [
        interleaved(2), interleaved(4), interleaved(2, torchtitan), shuffled(2), shuffled(8), two_jobs(0), two_jobs(3),
        two_jobs(3, dies_at=11), two_jobs(0, total=100, dies_at=8), two_jobs(5, total=100, dies_at=9),
    ],
    ids=range(10),
)  # fmt: skip
def test_two_losses_for_a_step_are_no_pass(log: list[str], tmp_path: Path) -> None:
    found = judged(log, tmp_path)
    check = of_losses(found)
    assert check is not None
    assert (found.outcome, check.status) == ("fail", "fail")
    assert found.headline == check.sentence
    assert check.sentence.startswith("train.log gives two losses for steps 1")
    assert any(text.startswith("step 1: 4.95 and ") or text.startswith("step 2: ") for text in check.evidence)
    assert check.evidence[-1] == "what to do: judge the log of each rank or run by itself"


def test_runs_that_have_no_step_in_common_are_found_too(tmp_path: Path) -> None:
    log = [text for step in range(1, 21) for text in (line(step + 180, a(step), 200), line(step, b(step), 200))]
    check = of_losses(judged(log, tmp_path))
    assert check is not None
    assert check.status == "fail"
    assert check.sentence == (
        "train.log has lines of another run at steps 1–19: several ranks or runs have written to it."
    )


def test_one_step_with_two_losses_leaves_it_open(tmp_path: Path) -> None:
    log = [text for step in range(1, N + 1) for text in (line(step, a(step)), line(step, a(step) + (step == 10) / 2))]
    found = judged(log, tmp_path)
    check = of_losses(found)
    assert check is not None
    assert (found.outcome, check.evidence[0]) == ("inconclusive", "step 10: 4.5 and 5.0")


def restarts(*ranges: tuple[int, int]) -> list[str]:
    """Each attempt finds losses a little different from those of the one before."""
    return [line(step, a(step) + n / 50) for n, (first, last) in enumerate(ranges) for step in range(first, last + 1)]


@pytest.mark.parametrize(
    "log",
    [
        interleaved(1), [text for text in interleaved(1) for _ in range(4)],
        [line(step, a(step) * (1 + rank * 1e-7)) for step in range(1, N + 1) for rank in range(4)],
        restarts((1, 15), (11, 20)), restarts((1, 20), (1, 20)),
        restarts((1, 11), (8, 13), (10, 17), (15, 20)), restarts((1, 13), (11, 13), (11, 13), (11, 20)),
        [*restarts((1, 10)), "using world size: 8", *(line(step, 1.1 * a(step)) for step in (10, 11)),
         "using world size: 8", *(line(step, a(step)) for step in range(11, 21))],
        [line(step, a(step), total) for total in (15, 20) for step in range(1, total + 1)],
    ],
    ids=range(9),
)  # fmt: skip
def test_copies_and_attempts_are_none(log: list[str], tmp_path: Path) -> None:
    found = judged(log, tmp_path)
    assert (of_losses(found), found.outcome) == (None, "pass")


def test_a_program_that_begins_again_at_its_last_step_without_a_word_leaves_it_open(tmp_path: Path) -> None:
    found = judged(restarts((1, 15), (15, 20)), tmp_path)
    assert (found.outcome, found.headline) == (
        "inconclusive",
        "train.log gives two losses for step 15: several ranks or runs have written to it, or it was restarted there.",
    )


def test_a_loss_that_is_printed_with_fewer_digits_is_the_same(tmp_path: Path) -> None:
    log = [torchtitan(step, a(step)) for step in range(1, N + 1) for _ in range(2)]
    log[1::2] = [text.replace(f"{a(n):8.5f}", f"{a(n) + 0.00001:8.5f}") for n, text in enumerate(log[1::2], 1)]
    assert of_losses(judged(log, tmp_path)) is None


def test_the_step_of_a_progress_bar_may_be_the_one_before(tmp_path: Path) -> None:
    bars = [f" {step * 5}%|█| {step - step % 2}/{N} [00:01<00:09]" for step in range(2, N + 1)]
    said = [f"{{'loss': {a(step):.4f}, 'grad_norm': 1.25, 'epoch': 0.04}}" for step in range(2, N + 1)]
    log = [text for pair in zip(bars, said, strict=True) for text in pair]
    assert of_losses(judged(log, tmp_path)) is None
    exact = [text.replace("}", f", 'step': {step - step % 2}}}") for step, text in enumerate(said, 2)]
    assert of_losses(judged(exact, tmp_path)) is not None


def deepspeed(step: int, loss: float) -> list[str]:
    """A step of DeepSpeed stands on two lines, of which the first has no loss."""
    return [
        f"[2026-03-01 10:00:{step:02d},113] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, "
        "lr=[1e-05], mom=[(0.9, 0.95)]",
        f"steps: {step} loss: {loss:.4f} iter time (s): 1.013 samples/sec: 31.600",
    ]


def test_two_jobs_whose_steps_are_of_two_lines_are_found(tmp_path: Path) -> None:
    alone = [text for step in range(1, N + 1) for text in deepspeed(step, a(step))]
    assert of_losses(judged(alone, tmp_path)) is None
    both = [text for step in range(1, N + 1) for loss in (a, b) for text in deepspeed(step, loss(step))]
    found = judged(both, tmp_path)
    assert found.outcome != "pass"
    assert of_losses(found) is not None
