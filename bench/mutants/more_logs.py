"""Three more ways to write a run down: nanotron's three digits, Hugging Face's dictionaries, and a file of metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from mutants.made_logs import DEVICES, Course, Family, clock_text, number
from mutants.other_logs import Step, written


def _digits(value: float) -> str:
    """Three digits and a suffix, as nanotron prints every number."""
    if not math.isfinite(value):
        return str(value)
    for scale, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}"


def _nanotron(course: Course, step: Step) -> Iterator[str]:
    rate = step.tokens_per_second * DEVICES
    month, day, hour = clock_text(step.clock)[5:7], clock_text(step.clock)[8:10], clock_text(step.clock)[11:]
    yield (
        f"[default0]:{month}/{day}/2026 {hour} [INFO|DP=0|PP=0|TP=0|node-1]: iteration: {step.number} / "
        f"{course.planned} | consumed_tokens: {_digits(step.number * 8192.0 * course.batch)} | "
        f"elapsed_time_per_iteration_ms: {_digits(step.seconds * 1000)} | tokens_per_sec: {_digits(rate)} | "
        f"tokens_per_sec_per_gpu: {_digits(rate / DEVICES)} | global_batch_size: {_digits(course.batch)} | "
        f"lm_loss: {_digits(step.loss)} | lr: 0.0003 | model_tflops_per_gpu: {_digits(step.mfu * 989.5)} | "
        f"grad_norm: {_digits(step.norm)}"
    )


def _transformers(course: Course, step: Step) -> Iterator[str]:
    yield (
        f"{{'loss': '{number(step.loss, '.4g')}', 'grad_norm': '{number(step.norm, '.4g')}', 'learning_rate': "
        f"'{step.learning_rate:.4g}', 'tokens_per_second_per_gpu': '{step.tokens_per_second:.2f}', 'epoch': "
        f"'{step.number / 600:.4g}', 'global_step/max_steps': '{step.number}/{course.planned}'}}"
    )


def _transformers_end(course: Course) -> list[str]:
    seconds = sum(course.seconds)
    return [
        f"{{'train_runtime': '{seconds:.4g}', "
        f"'train_samples_per_second': '{course.batch * course.steps / seconds:.4g}', "
        f"'train_steps_per_second': '{course.steps / seconds:.4g}', 'train_loss': '3.1', 'epoch': '0.1'}}"
    ]


def _metrics(course: Course, step: Step) -> Iterator[str]:
    yield json.dumps(
        {
            "step": step.number - 1, "learning/loss": step.loss, "learning/grad_norm": step.norm,
            "perf/step_time_seconds": step.seconds, "learning/current_learning_rate": step.learning_rate,
        }
    )  # fmt: skip


MORE: dict[str, Family] = {
    family.name: family
    for family in (
        Family(name="nanotron", write=written(_nanotron, lambda _: [])),
        Family(
            name="transformers", says_batch=False,
            write=written(_transformers, lambda _: ["***** Running training *****"], _transformers_end),
        ),
        Family(
            name="metrics", prints_total=False, counts_from=0, says_batch=False, is_rows=True,
            write=written(_metrics, lambda _: [], most_noise=0),
        ),
    )
}  # fmt: skip
