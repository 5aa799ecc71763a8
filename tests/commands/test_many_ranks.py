"""Judging files of many ranks makes an event of every step of one rank alone; the other steps stay columns."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.events import Step
from seatrial.logs.process_log import RANKS_APART
from seatrial.recording import Steps
from tests.helpers.command_line import seatrial

RANKS, STEPS = 6, 80


def write_logs(folder: Path) -> None:
    rng = random.Random(8)
    folder.mkdir()
    losses = [2.0 + 8.0 / (step + 1) for step in range(STEPS)]
    for rank in range(RANKS):
        lines = [f"I1003 11:20:00.{rank:06d} 77 pyconfig.py:591] Config param steps: {STEPS}"]
        for step, loss in enumerate(losses):
            seconds, at = rng.uniform(0.98, 1.02), 20 * 60 + step
            lines.append(
                f"I1003 11:{at // 60:02d}:{at % 60:02d}.{rank:06d} 77 metric_logger.py:265] completed step: {step}, "
                f"seconds: {seconds:.3f}, TFLOP/s/device: {300 / seconds:.3f}, Tokens/s/device: {4096 / seconds:.3f}, "
                f"total_weights: 65536, loss: {loss:.3f}"
            )
        (folder / f"rank{rank}.log").write_text("\n".join(lines) + "\n")


def test_events_of_all_steps_are_made_of_one_rank_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_logs(tmp_path / "logs")
    made: Counter[int] = Counter()
    events = Steps.events

    def counted(steps: Steps) -> Iterator[Step]:
        for step in events(steps):
            made[step.process] += 1
            yield step

    monkeypatch.setattr(Steps, "events", counted)
    result = seatrial("judge", "logs", "--format", "json", cwd=tmp_path)
    assert result.returncode in (0, 3), result.stdout + result.stderr
    # The first and the last, say, and of each block those with which copies of a step are compared.
    assert max(made[rank] for rank in range(1, RANKS)) < RANKS_APART + 5
