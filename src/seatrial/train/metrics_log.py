"""Run outputs: events, log lines, tables, TensorBoard, and a profile of some steps."""

from __future__ import annotations

import csv
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import jax

from seatrial import events
from seatrial.estimate import flops
from seatrial.spec import RunSpec
from seatrial.train.startup import Place

SIGN_OF_LIFE_SECONDS = 10.0  # whoever watches the log for progress sees a step at least so often

# Quantity → its name in TensorBoard where a run is configured as for NeMo, MaxText or Megatron. Any other keeps ours.
TAGS: dict[str, tuple[str, str, str]] = {
    "loss": ("reduced_train_loss", "learning/loss", "lm_loss"),
    "validation_loss": ("val_loss", "eval/avg_loss", "lm_loss_validation"),
    "learning_rate": ("lr", "learning/current_learning_rate", "learning-rate"),
    "gradient_norm": ("gradient_norm", "learning/raw_grad_norm", "grad-norm"),
    "parameter_norm": ("parameter_norm", "learning/param_norm", "params-norm"),
    "seconds": ("train_step_timing", "perf/step_time_seconds", "iteration-time"),
    "tokens": ("tokens", "learning/total_weights", "tokens"),
    "consumed_samples": ("consumed_samples", "consumed_samples", "consumed-samples"),
    "samples_per_second": ("throughput", "throughput", "samples-per-second"),
    "tokens_per_second_per_device": ("tokens_per_second", "perf/per_device_tokens_per_sec", "tokens-per-second"),
    "tflops_per_second_per_device": ("tflops_per_sec_per_gpu", "perf/per_device_tflops_per_sec", "throughput"),
}
_COLUMNS = {"maxtext": 1, "jax": 1, "megatron": 2}  # of TAGS, by a part of the dialect's name; else 0
COLUMNS = ("step", *TAGS, "data_seconds", "phase")

Row = Callable[[int, Mapping[str, Any]], object]  # writes (step, quantities) somewhere


class Journal:
    """Writes the outputs of a run. Every process writes its events; the first also everything that people read.

    Steps count from 0; an evaluation's step is the number of steps before it. Tables and TensorBoard get the numbers of
    every `logging.interval_steps`-th step.
    """

    def __init__(self, spec: RunSpec, place: Place, folder: Path) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._writer = events.Writer(folder / f"events-{place.process}.jsonl")
        self._is_first = place.process == 0
        self._said = -math.inf
        self._early: list[events.Event] | None = []  # what comes before the event that begins an attempt
        self._rows: list[Row] = []
        self._opened: list[Any] = [self._writer]
        if self._is_first:
            names = ("metrics.csv", "metrics.jsonl")
            table, lines = ((folder / name).open("a", buffering=1, newline="", encoding="utf-8") for name in names)
            self._rows, self._opened = [_table(table), _lines(lines)], [self._writer, table, lines]
            if spec.logging.tensorboard:
                # Without the suffix, a file that was begun in the same second would be overwritten.
                writer = _summary_writer()(str(folder / "tensorboard"), filename_suffix=f".{time.time_ns()}")
                self._rows.append(_tensorboard(writer, spec.dialect))
                self._opened.append(writer)

    def write(self, event: events.Event) -> None:
        """Writes an event, from any thread; those before RunStarted wait for it."""
        with self._lock:
            if self._early is not None and not isinstance(event, events.RunStarted):
                self._early.append(event)
                return
            early, self._early = self._early or [], None
            for each in (event, *early):
                self._writer.write(each)

    def say(self, text: str) -> None:
        """Prints a line of the log, on the first process."""
        if self._is_first:
            print(text, flush=True)

    def step(self, step: events.Step, *, last: bool) -> None:
        """Writes a step; at intervals, and for the first and the last, also prints it."""
        self.write(step)
        shown = step.step % self._spec.logging.interval_steps == 0 or last
        if shown or time.monotonic() - self._said > SIGN_OF_LIFE_SECONDS:
            self.say(maxtext_line(self._spec, step))
            self._said = time.monotonic()
        if shown and self._is_first:
            self._row(step.step, self._numbers(step))

    def evaluation(self, event: events.Eval, text: str) -> None:
        self.write(event)
        self.say(text)
        self._row(event.step, {"validation_loss": event.loss})

    def close(self) -> None:
        for each in self._opened:
            each.close()

    def _numbers(self, step: events.Step) -> dict[str, Any]:
        spec, seconds = self._spec, step.seconds or math.nan
        per_second = spec.tokens_per_step / seconds / spec.topology.num_devices
        return {
            "loss": step.loss,
            "learning_rate": step.learning_rate,
            "gradient_norm": step.grad_norm if spec.logging.gradient_norm else None,
            "parameter_norm": step.reported.get("params_norm"),
            "seconds": step.seconds,
            "tokens": step.tokens,
            "consumed_samples": (step.step + 1) * spec.batch.global_batch_size,
            "samples_per_second": spec.batch.global_batch_size / seconds,
            "tokens_per_second_per_device": per_second,
            "tflops_per_second_per_device": per_second * _flops(spec) / 1e12,
            "data_seconds": step.data_seconds,
            "phase": step.phase or None,
            **{name: x for name, x in step.reported.items() if name not in events.REPORTED},
        }

    def _row(self, number: int, numbers: Mapping[str, Any]) -> None:
        given = {name: value for name, value in numbers.items() if value is not None}
        for row in self._rows:
            row(number, given)


def _flops(spec: RunSpec) -> float:
    return flops.flops_per_token(spec.model, spec.batch.sequence_length)


def maxtext_line(spec: RunSpec, step: events.Step) -> str:
    """A step as MaxText prints it, so that tools which read MaxText's log read ours."""
    tokens_per_second = spec.tokens_per_step / (step.seconds or math.nan) / spec.topology.num_devices
    return (
        f"completed step: {step.step}, seconds: {step.seconds:.3f}, "
        f"TFLOP/s/device: {tokens_per_second * _flops(spec) / 1e12:.3f}, Tokens/s/device: {tokens_per_second:.3f}, "
        f"total_weights: {step.tokens}, loss: {step.loss:.3f}"
    )


# --- where numbers go -------------------------------------------------------------------------------------------------


def _table(file: TextIO) -> Row:
    writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
    if file.tell() == 0:
        writer.writeheader()
    return lambda number, numbers: writer.writerow({"step": number, **numbers})


def _lines(file: TextIO) -> Row:
    return lambda number, numbers: file.write(json.dumps(events.encode({"step": number, **numbers})) + "\n")


def _summary_writer() -> Any:
    """tensorboardX's class, without PyTorch, which it would import where that is installed: seconds, for nothing."""
    modules: dict[str, Any] = sys.modules
    is_hidden = "torch" not in modules
    if is_hidden:
        modules["torch"] = None  # importing it fails, as where it is not installed
    try:
        from tensorboardX import SummaryWriter
    finally:
        if is_hidden:
            del modules["torch"]
    return SummaryWriter


def _tensorboard(writer: Any, dialect: str) -> Row:
    column = next((column for part, column in _COLUMNS.items() if part in dialect), 0)

    def row(number: int, numbers: Mapping[str, Any]) -> None:
        for name, value in numbers.items():
            if not isinstance(value, str):
                writer.add_scalar(TAGS[name][column] if name in TAGS else name, value, number)

    return row


class Profile:
    """A trace of the steps that the spec names, in the run directory; the first process stands for all.

    Tracing costs time, so those steps do not count for the run's speed: `phase` says so.
    """

    def __init__(self, spec: RunSpec, place: Place, folder: Path, steps: int) -> None:
        begin = spec.execution.profile_from_step
        self._steps = range(0) if begin is None else range(begin, min(begin + spec.execution.profile_steps, steps))
        self._folder = folder / "profile"
        self._traces = place.process == 0
        self._runs = False

    def phase(self, number: int) -> str:
        return "profiler" if number in self._steps else ""

    def begins(self, number: int) -> bool:
        return number in self._steps and not self._runs

    def ends(self, number: int) -> bool:
        return self._runs and number == self._steps[-1]

    def start(self) -> None:
        self._runs = True
        if self._traces:
            jax.profiler.start_trace(self._folder)

    def stop(self) -> None:
        if self._traces and self._runs:
            jax.profiler.stop_trace()
        self._runs = False
