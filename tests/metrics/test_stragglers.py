"""The slow process among several, by whatever of a speed their logs give."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial import logs, metrics, verdict
from seatrial.events import Event
from seatrial.metrics import Metrics
from seatrial.spec import RunSpec, Topology
from tests.helpers.streams import ended, make_spec, started, steps

N, RANKS = 40, 4


def torchtitan(step: int, speed: float) -> str:
    return (
        f"[titan] 2026-02-24 19:46:{step:02d},508 - root - INFO - step: {step:2d}  loss: {8 - step / 20:8.5f}  "
        f"grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: {10_050 * speed:,.0f}  tflops: {314 * speed:,.2f}  "
        f"mfu: {14 * speed:.2f}%"
    )


def of_2024(step: int, speed: float) -> str:
    return torchtitan(step, speed).replace("tps:", "wps:").partition("  tflops:")[0] + "  mfu: 14.00%"


def nxdt(step: int, speed: float) -> str:
    return (
        f"Epoch 0: : 100%|████| {step}/{N} [16:26<00:00, v_num=0, reduced_train_loss={8 - step / 20:.3f}, "
        f"global_step={step - 1}.0, throughput={9.05 * speed:.4f}]"
    )


def megatron(step: int, speed: float) -> str:
    return (
        f" iteration {step:8d}/{N:8d} | consumed samples: {step * 16:12d} | lm loss: {8 - step / 20:.6E} | "
        f"throughput per GPU (TFLOP/s/GPU): {412.5 * speed:.2f} | grad norm: 1.250 | "
        "elapsed time per iteration (ms): - |"
    )


def only_mfu(step: int, speed: float) -> str:
    return megatron(step, speed).replace("throughput per GPU (TFLOP/s/GPU)", "mfu (%)")


def nanotron(step: int, speed: float) -> str:
    return (
        f"iteration: {step} / {N} | consumed_tokens: 25.2M | tokens_per_sec_per_gpu: {9.05 * speed:.4f}K | "
        f"lm_loss: {8 - step / 20:.3f} | lr: 0.0003 | grad_norm: 1.2"
    )


def hugging_face(step: int, speed: float) -> str:
    return f"{{'loss': {8 - step / 20:.4f}, 'tokens_per_second_per_gpu': {9050 * speed:.2f}, 'step': '{step}/{N}'}}"


def measured(folder: Path, line: Callable[[int, float], str], slow: float, *head: str) -> Metrics:
    """Rank 3 runs at this part of the speed of the others; all of them vary by some percent."""
    made = random.Random(7)
    for rank in range(RANKS):
        pace = slow if rank == 3 else 1.0
        text = [*head, *(line(step, pace * made.gauss(1, 0.02)) for step in range(1, N + 1))]
        (folder / f"rank{rank}.log").write_text("\n".join(text) + "\n")
    return metrics.measure(logs.read([folder]), None)


LINES = [
    (torchtitan, "tokens/s"), (of_2024, "tokens/s"), (nxdt, "samples/s"), (megatron, "TFLOP/s"), (only_mfu, "MFU"),
    (nanotron, "tokens/s"), (hugging_face, "tokens/s"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), LINES)
def test_a_slow_rank_is_named_by_what_its_log_reports(
    line: Callable[[int, float], str], words: str, tmp_path: Path
) -> None:
    found = measured(tmp_path, line, 0.9)
    (slow,) = found.performance.stragglers
    assert (slow.process, slow.step_seconds, slow.origin) == (3, None, f"from the reported {words}")
    assert 0.09 < slow.slower_by < 0.13
    judged = verdict.judge(found, None, rehearsal=False)
    told = [text for check in judged.axes["performance"].checks for text in check.evidence]
    assert f"rank 3 is {slow.slower_by:.1%} slower than the others, from the reported {words}" in told


@pytest.mark.parametrize(("line", "words"), LINES)
def test_noise_names_nobody(line: Callable[[int, float], str], words: str, tmp_path: Path) -> None:
    assert measured(tmp_path, line, 1.0).performance.stragglers == ()


def test_tokens_per_second_are_seconds_where_the_tokens_of_a_step_are_known(tmp_path: Path) -> None:
    head = (
        "[titan] 2026-02-24 19:40:00,508 - root - INFO - Building 1-D device mesh with ['dp_shard'], [4]",
        "[titan] 2026-02-24 19:40:00,508 - root - INFO - Trainer is initialized with local batch size 2, "
        f"global batch size 8, sequence length 4096, total steps {N} (warmup 2).",
    )
    found = measured(tmp_path, torchtitan, 0.8, *head)
    (slow,) = found.performance.stragglers
    assert slow.step_seconds == pytest.approx(2 * 4096 / (0.8 * 10_050), rel=0.02)
    judged = verdict.judge(found, None, rehearsal=False)
    told = [text for check in judged.axes["performance"].checks for text in check.evidence]
    assert any(
        "slower than the others: 1.0" in text and text.endswith("s, from the reported tokens/s") for text in told
    )


def test_times_are_compared_before_rates(tmp_path: Path) -> None:
    def line(step: int, speed: float) -> str:
        return megatron(step, 1.0).replace("(ms): -", f"(ms): {1000 / speed:.1f}")

    (slow,) = measured(tmp_path, line, 0.8).performance.stragglers
    assert (slow.process, slow.origin) == (3, "")
    assert slow.step_seconds == pytest.approx(1.25, rel=0.02)


@pytest.mark.parametrize(("slow", "word"), [(0.9, "But rank 3 on local3 is 11% slower"), (1.0, "")])
def test_the_headline_of_a_run_that_passes_names_the_slow_rank(slow: float, word: str, tmp_path: Path) -> None:
    spec = make_spec(steps=N, topology=Topology(num_nodes=1, devices_per_node=4))
    record = [each for rank in range(RANKS) for each in own_events(spec, rank, slow if rank == 3 else 1.0)]
    judged = verdict.judge(metrics.measure(record, spec), spec, rehearsal=False)
    assert judged.outcome == "pass", judged.headline
    assert word in judged.headline
    assert ("slower than" in judged.headline) == bool(word)


def own_events(spec: RunSpec, rank: int, speed: float) -> list[Event]:
    made = random.Random(rank)
    first = [started(spec, rank)]
    taken = steps(spec, rank, seconds=lambda n: (3.0 if n == 0 else 1.0) * made.gauss(1, 0.01) / speed)
    return [*first, *taken, ended(process=rank)]
