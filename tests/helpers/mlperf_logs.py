"""Logs of MLPerf Training as its submitters print them, each in its own way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

BATCH, SEQUENCE = 8, 1024
EVALUATIONS = (1.5, 1.1, 0.95, 0.92)  # "llama2_70b_lora" has to come down to 0.925
FIRST, EACH, LOSS_EVERY, SECONDS = 40, 16, 5, 2.0  # steps of the first block, of the others; between losses; of a step
START = 1_790_000_000.0


def line(time: float, key: str, value: Any = None, **metadata: Any) -> str:
    said = {"namespace": "", "time_ms": round(1000 * time), "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**said, "metadata": {"file": "/opt/run/train.py", "lineno": 7, **metadata}})


def header(benchmark: str = "llama2_70b_lora", **facts: Any) -> list[str]:
    """The lines before the first step; several ranks log that they begin."""
    lines = [line(START - 60 + rank / 100, "init_start") for rank in range(4)]
    facts = {"submission_benchmark": benchmark, "global_batch_size": BATCH, **facts}
    lines += [line(START - 50, key, value) for key, value in facts.items()]
    return [*lines, line(START, "run_start")]


def _losses(began: float, before: int, after: int) -> Iterator[tuple[float, int, float]]:
    """(time, step, loss) of those steps of a block that report their loss; it is as noisy as in fine-tuning."""
    for step in range(before + LOSS_EVERY - before % LOSS_EVERY, after + 1, LOSS_EVERY):
        yield began + SECONDS * (step - before), step, 1.3 + 0.1 * (-1) ** step


def _blocks(evaluations: Sequence[float]) -> Iterator[tuple[float, int, int, float]]:
    """(time at its start, steps before, steps after, the evaluation) of each block; an evaluation takes ten seconds."""
    time, before = START, 0
    for found in evaluations:
        after = before + (EACH if before else FIRST)
        yield time, before, after, found
        time, before = time + SECONDS * (after - before) + 10, after


def later(lines: Sequence[str], seconds: int) -> list[str]:
    """The log of a run that began so much later."""
    return [re.sub(r'"time_ms": (\d+)', lambda at: f'"time_ms": {int(at[1]) + 1000 * seconds}', text) for text in lines]


def seconds_to_train(evaluations: Sequence[float]) -> float:
    """The seconds that a run of these evaluations takes, from `run_start` to `run_stop`."""
    return sum(SECONDS * (after - before) + 10 for _, before, after, _ in _blocks(evaluations))


def only_throughput(evaluations: Sequence[float] = EVALUATIONS, status: str = "success") -> list[str]:
    """A speed and an evaluation a block, and no training loss."""
    lines, end, done = header(), START, 0
    for began, before, after, found in _blocks(evaluations):
        end, done = began + SECONDS * (after - before), BATCH * after
        lines += [
            line(began, "block_start", samples_count=BATCH * before),
            line(end, "tracked_stats", {"throughput": BATCH / SECONDS}, step=done),
            line(end, "block_stop", samples_count=done, curr_global_step=after),
            line(end, "eval_start", samples_count=done),
            line(end + 10, "eval_accuracy", found, samples_count=done),
            line(end + 10, "eval_stop", samples_count=done),
        ]
    return [*lines, line(end + 10, "run_stop", samples_count=done, status=status)]


def samples_of_the_block(evaluations: Sequence[float] = EVALUATIONS, status: str = "success") -> list[str]:
    """Losses every few steps, with step and samples; at a block's borders, the samples are those of the block."""
    lines, end, after = header(target_accuracy=0.925), START, 0
    for began, before, after, found in _blocks(evaluations):
        end = began + SECONDS * (after - before)
        own, done = BATCH * (after - before), BATCH * after
        lines.append(line(began, "block_start", samples_count=own, step=before))
        lines += [
            line(time, "tracked_stats", {"train_loss": loss}, samples_count=BATCH * step, lr=1e-4, step=step)
            for time, step, loss in _losses(began, before, after)
        ]
        lines += [
            line(end, "tracked_stats", {"train_step_time": SECONDS}, samples_count=own),
            line(end, "block_stop", samples_count=own, step=after),
            line(end, "eval_start", samples_count=done, step=after),
            line(end + 10, "eval_accuracy", found, samples_count=done),
            line(end + 10, "tracked_stats", {"validation_time": 10.0}, step=after),
            line(end + 10, "eval_stop", samples_count=done, step=after),
        ]
    return [*lines, line(end + 10, "run_stop", samples_count=BATCH * after, step=after, status=status)]


def blocks_by_their_start(evaluations: Sequence[float] = EVALUATIONS, status: str = "success") -> list[str]:
    """Losses as lines of their own; what is said of a block carries the samples at its start. srun names the task."""
    lines, end, done = header(), START, 0
    for began, before, after, found in _blocks(evaluations):
        end, done = began + SECONDS * (after - before), BATCH * after
        figures = {"throughput": BATCH / SECONDS, "train_step_time": SECONDS, "max_memory_usage": 82.3}
        lines.append(line(began, "block_start", samples_count=BATCH * before))
        lines += [
            line(time, "train_loss", loss, samples_count=BATCH * step, lr=1e-4)
            for time, step, loss in _losses(began, before, after)
        ]
        lines += [
            line(end, "tracked_stats", figures, step=BATCH * before),
            line(end, "block_stop", samples_count=BATCH * before),
            line(end + 10, "eval_accuracy", found, samples_count=done),
            line(end + 10, "tracked_stats", {"validation_throughput": 13.0}, step=done),
        ]
    lines.append(line(end + 10, "run_stop", evaluations[-1], samples_count=done, status=status))
    return [f" 0: {text}" for text in lines]


def only_evaluations(evaluations: Sequence[float] = EVALUATIONS, status: str = "success") -> list[str]:
    """Nothing but evaluations say how far it came, in tokens."""
    lines, end = header("gpt3", max_sequence_length=SEQUENCE), START
    for began, before, after, found in _blocks([2 + found * 0.74 for found in evaluations]):  # it has to reach 2.69
        end, tokens = began + SECONDS * (after - before), BATCH * SEQUENCE
        lines += [
            line(began, "block_start", first_epoch_num=tokens * before, epoch_count=tokens * (after - before)),
            line(end, "block_stop", first_epoch_num=tokens * before),
            line(end + 10, "eval_accuracy", found, epoch_num=tokens * after),
        ]
    lines.append(line(end + 10, "run_stop", status=status))
    return [*lines, "0: `Trainer.fit` stopped: `max_epochs=1` reached."]


GRAMMARS = (only_throughput, samples_of_the_block, blocks_by_their_start, only_evaluations)
