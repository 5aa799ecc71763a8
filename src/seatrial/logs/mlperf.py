"""MLPerf training: `:::MLLOG {"time_ms": 1759966614209, "key": "tracked_stats", "value": {"throughput": 30.15}, …}`.

One JSON object a line, maybe behind a launcher's prefix. Throughput is in samples a second of the whole cluster, and
what is called "step" counts samples (tokens for "gpt3"), so that the batch size makes a step of it; without one there
are no steps. Since v6.0, some say how long a step took. https://github.com/mlcommons/logging
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.logs.grammar import Family, Note, Reading, ReadLine

_MARK = ":::MLLOG"
_DECODER = json.JSONDecoder()


def _note(means: Any) -> Note:
    return Note(means=means, literal=_MARK, pattern=re.compile(_MARK))


_START, _FACTS, _EVAL, _END = (_note(means) for means in ("start", "facts", "eval", "end"))

# Key of a line → fact.
_FACT_KEYS = {
    "global_batch_size": "global_batch_size",
    "max_sequence_length": "sequence_length",
    "gradient_accumulation_steps": "accumulation_steps",
    "max_steps": "max_steps",  # most runs reach their target earlier
    "submission_benchmark": "model",
    "submission_org": "organization",
    "submission_platform": "platform",
}
_SAMPLES = ("samples_count", "step", "epoch_num")  # how metadata says how many; "step_num" is of steps indeed
_NO_LOSS = re.compile(r"bert|resnet|ssd|unet|dlrm|rnnt|maskrcnn|minigo|retinanet", re.IGNORECASE)  # a real accuracy
_REASONS = {"success": "completed", "aborted": "interrupted"}

Found = Reading | tuple[Note, Mapping[str, Any]]


class _Log:
    """What a log has said so far, as far as later lines are read by it."""

    def __init__(self) -> None:
        self._batch = 0.0
        self._sequence = 0.0
        self._benchmark = ""
        self._running = True
        self._steps_told = False
        self._block: tuple[float, float] | None = None  # when it began, and how many samples there had been

    def __call__(self, line: str) -> Iterator[Found]:
        at = line.find(_MARK)
        while at >= 0:
            at += len(_MARK)
            found = _decoded(line, at)
            if found is not None:
                yield from self._read(found)
            at = line.find(_MARK, at)

    def _read(self, found: Mapping[str, Any]) -> Iterator[Found]:
        key, value, metadata = found.get("key"), found.get("value"), found.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        milliseconds = _number(found.get("time_ms"))
        time = {} if milliseconds is None else {"time": milliseconds / 1000}
        match key:
            case "init_start":
                self._running = True
                yield _START, time
            case "run_start":
                self._running = True
                yield _FACTS, {**time, **({"run_start_seconds": time["time"]} if time else {})}
            case "run_stop":
                self._running = False
                if reason := _REASONS.get(str(metadata.get("status"))):
                    yield _END, {**time, "reason": reason}
            case "block_start":
                samples = _number(metadata.get("samples_count"))
                self._block = (time["time"], samples) if time and samples is not None else None
            case "block_stop" if self._block and time and not self._steps_told:
                yield from self._step_of_block(metadata, time)
            case "tracked_stats" if isinstance(value, dict):
                yield from self._step(metadata, value, time)
            case "train_loss":
                yield from self._step(metadata, {"loss": value, **metadata}, time)
            case "eval_accuracy" | "eval_loss":
                step = self._steps(metadata)
                loss = None if key == "eval_accuracy" and _NO_LOSS.search(self._benchmark) else _number(value)
                if step is not None:
                    yield _EVAL, {**time, "step": step, **({} if loss is None else {"loss": loss})}
            case str() if key in _FACT_KEYS and isinstance(value, (str, int, float)):
                self._learn(key, value)
                yield _FACTS, {**time, _FACT_KEYS[key]: value}

    def _learn(self, key: str, value: str | float) -> None:
        match key:
            case "global_batch_size":
                self._batch = _number(value) or 0.0
            case "max_sequence_length":
                self._sequence = _number(value) or 0.0
            case "submission_benchmark":
                self._benchmark = str(value)

    def _step(
        self, metadata: Mapping[str, Any], value: Mapping[str, Any], time: Mapping[str, float]
    ) -> Iterator[Found]:
        """Figures of a step; after the end of the run they are sums over it."""
        step = self._steps(metadata)
        samples_per_second = _number(value.get("throughput"))
        figures = {
            "seconds": _number(value.get("train_step_time")),
            "loss": _number(value.get("loss", value.get("reduced_train_loss"))),
            "learning_rate": _number(value.get("lr")),
            "samples_per_second_total": samples_per_second and samples_per_second / self._tokens(),
        }
        if self._running and step is not None and (samples_per_second or figures["loss"] is not None):
            known = {name: number for name, number in figures.items() if number is not None}
            self._steps_told = True
            yield Reading(values={"step": step, **time, **known})

    def _step_of_block(self, metadata: Mapping[str, Any], time: Mapping[str, float]) -> Iterator[Found]:
        """The last step of what lies between two evaluations, for logs that tell of no other."""
        began, before = self._block or (0.0, 0.0)
        samples, step = _number(metadata.get("samples_count")), self._steps(metadata)
        if step is not None and samples is not None and samples > before and time["time"] > began:
            per_second = (samples - before) / self._tokens() / (time["time"] - began)
            yield Reading(values={"step": step, **time, "samples_per_second_total": per_second})

    def _steps(self, metadata: Mapping[str, Any]) -> int | None:
        """The step of a line; None without a batch size that tells it."""
        if (steps := _number(metadata.get("step_num"))) is not None:
            return _whole(steps)
        samples = next((n for name in _SAMPLES if (n := _number(metadata.get(name))) is not None), None)
        if samples is None or self._batch <= 0 or not self._tokens():
            return None
        return _whole(samples / self._tokens() / self._batch)

    def _tokens(self) -> float:
        """Of the unit that the benchmark counts in, those in a sample."""
        return self._sequence if self._benchmark == "gpt3" else 1.0


def _decoded(line: str, at: int) -> Mapping[str, Any] | None:
    """The object behind the mark; None for one that was cut or broken."""
    try:
        found, _ = _DECODER.raw_decode(line, at + len(line[at:]) - len(line[at:].lstrip()))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(value: Any) -> float | None:
    """A number of the JSON; strings and lists are none, nor are true and false."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _whole(number: float) -> int | None:
    return int(number) if 0 <= number < 1e15 else None


def _reader() -> ReadLine:
    return _Log()


_NEVER = re.compile(r"(?!)")

FAMILY = Family(
    name="mlperf",
    anchors=(_MARK,),
    head=_NEVER,
    pair=_NEVER,
    fields={},
    counted_from=1,
    other=_reader,
    other_words=(_MARK,),
)
