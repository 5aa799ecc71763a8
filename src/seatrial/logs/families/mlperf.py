"""MLPerf training: `:::MLLOG {"time_ms": 1759966614209, "key": "tracked_stats", "value": {"throughput": 30.15}, …}`.

One JSON object a line, maybe behind a launcher's prefix. A run is a chain of *blocks*, each from one evaluation to the
next, and ends with `run_stop`, whose status says whether the evaluation reached its target. Lines with a training loss
are steps; where there are none, the end of each block is one. What is called "step" counts samples (tokens for "gpt3"),
unless the samples stand beside it, so that the batch size makes a step of it; without one there are no steps. An
`epoch_num` below the batch size counts epochs, of `train_samples` each; told after the evaluations of a run, these are
the samples that it was trained on. Evaluations of most benchmarks that are no language models report a score, and no
loss. The open division sets its own targets: there, a score counts from when it comes to that of the closed one.
`:::SYSJSON {…}`, which many launchers print, describes the system: its nodes and what they have of devices.

Older rules have lines of their own, which say the same: `:::MLL 1561.340 eval_accuracy: {"value": 25.2, …}` (v0.6) and
`:::MLPv0.5.0 gnmt 1541.384 (train.py:464) eval_accuracy: {"epoch": 2, "value": 22.0}` (v0.5). They do not tell how many
steps an epoch has, nor does the batch of the translation with a transformer, which some programs count in tokens:
there, an epoch is a step.
https://github.com/mlcommons/logging
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from seatrial.logs.grammar import END, EVAL, FACTS, START, Family, Found, Reading
from seatrial.logs.numbers import json_number

_MARK, _SYSTEM = ":::MLLOG", ":::SYSJSON"
_MARK_06, _MARK_05 = ":::MLL ", ":::MLPv"
_LINE_06 = re.compile(r":::MLL (?P<seconds>\d{1,12}\.\d+) (?P<key>\w+): ")
_LINE_05 = re.compile(
    r":::MLPv(?P<rules>\d+\.\d+)[\d.]* (?P<benchmark>\w+) (?P<seconds>\d{1,12}\.\d+) "
    r"\([^()]*(?:\([^()]*\)[^()]*)?\) (?P<key>\w+)(?:: )?"
)
_AS_TEXT = re.compile(r"-?\d{1,6}(?:\.\d{1,20})?")  # a score that stands in quotes
_DECODER = json.JSONDecoder()

# Key of a line → fact.
_FACT_KEYS = {
    "global_batch_size": "global_batch_size",
    "max_sequence_length": "sequence_length",
    "gradient_accumulation_steps": "accumulation_steps",
    "max_steps": "max_steps",  # most runs reach their target earlier
    "target_accuracy": "target_eval_loss",  # used only where the evaluations report a loss
    "submission_benchmark": "model",
    "submission_org": "organization",
    "submission_platform": "platform",
}
# The loss that an evaluation has to come down to, for logs that leave it out; "closed division" of
# https://github.com/mlcommons/training_policies/blob/master/training_rules.adoc
_TARGETS = {"llama2_70b_lora": 0.925, "llama31_8b": 3.3, "llama31_405b": 5.6, "gpt3": 2.69, "flux1": 0.586}
# What decides where it is no loss: benchmark → the score that it has to come to, in the closed division, or that of
# each metric; by the same rules, those of MLPerf HPC, and https://github.com/mlcommons/logging, which checks results.
_Scores = Mapping[str, float | Mapping[str, float]]
_SCORES: _Scores = {
    "bert": 0.72,
    "cosmoflow": 0.124,
    "deepcam": 0.82,
    "dlrm": 0.8025,
    "dlrm_dcnv2": 0.80275,
    "gnmt": 24.0,
    "gnn": 0.72,
    "oc20": 0.036,
    "resnet": 0.759,
    "retinanet": 0.34,
    "rgat": 0.72,
    "rnnt": 0.058,
    "ssd": 0.34,
    "stable_diffusion": {"FID": 90.0, "CLIP": 0.15},
    "transformer": 25.0,
    "unet3d": 0.908,
}
_LESS_IS_BETTER = {"cosmoflow", "oc20", "rnnt", "FID"}
# Those of rules that a line names.
_SCORES_BY_RULES: Mapping[str, _Scores] = {
    "0.5": {"gnmt": 21.8, "ncf": 0.635, "resnet": 0.749, "ssd": 0.212, "transformer": 25.0},
    "0.6": {"gnmt": 24.0, "resnet": 0.759, "ssd": 0.23, "transformer": 25.0},
}
# Later lines name no rules. The time tells which ones there were: up to it (in UTC) → what was lower than it is now.
_SCORES_BEFORE: Sequence[tuple[float, _Scores]] = (
    (datetime(2021, 1, 1, tzinfo=UTC).timestamp(), {"bert": 0.712, "ssd": 0.23}),
    (datetime(2022, 1, 1, tzinfo=UTC).timestamp(), {"ssd": 0.23}),  # the model of that time
)
_BLEU = {"gnmt", "transformer"}  # in percent; some programs print a fraction
_TRANSLATION = "transformer"
# Facts in steps or of one, which say nothing where epochs are counted.
_OF_STEPS = {"global_batch_size", "max_sequence_length", "gradient_accumulation_steps", "max_steps"}
# How metadata says how many; "step_num" is of steps indeed.
_SAMPLES = ("samples_count", "train_samples_since_beginning", "step", "epoch_num")
_LOSSES = ("loss", "train_loss", "reduced_train_loss")
_NO_LOSS = re.compile(  # a real accuracy
    r"bert|resnet|ssd|unet|dlrm|rnnt|maskrcnn|minigo|retinanet|rgat|gnn|stable_diffusion|deepcam|openfold",
    re.IGNORECASE,
)
MOST_UNPLACED = 10_000  # evaluations
_COUNT = re.compile(r"[0-9]{1,7}")  # of nodes, and of devices in each
_REASONS = {"success": "stopped_early", "aborted": "aborted"}


class _Evaluation(NamedTuple):
    """A line with the result of an evaluation."""

    metadata: Mapping[str, Any]
    value: Any
    time: Mapping[str, float]
    is_loss: bool


class _Log:
    """The state of a log so far, as far as later lines depend on it."""

    def __init__(self) -> None:
        self._batch = 0.0
        self._sequence = 0.0
        self._benchmark = ""
        self._is_open = False  # of the open division, which sets its own targets
        self._rules = ""  # of an older version, whose lines name it
        self._planned = 0.0  # steps, by the learning rate
        self._train_samples = 0.0  # in an epoch
        self._target_told = False
        self._running = True
        self._began: float | None = None  # when the run that goes on, or went on last
        self._seconds: float | None = None  # that it took
        self._forget()

    def _forget(self) -> None:
        """Forgets what was said of the steps of one run, which counts for nothing in the next."""
        self._tells_losses = False
        self._last = 0  # step that was reported
        self._scored: tuple[int, dict[str, float]] = (0, {})  # a step, and the metrics of its evaluation so far
        self._has_reached = False  # whether a score came to the target of the closed division
        self._best = 0.0  # score
        self._epoch: float | None = None  # that began last, as it is counted
        self._counted_from: float | None = None  # number of the first epoch
        self._unplaced: list[_Evaluation] = []  # those of which nothing has told the step yet
        self._figures: dict[str, float] = {}  # of a block, for the next step that is reported
        self._block: tuple[float, int] | None = None  # when it began, and how many steps there had been

    def __call__(self, line: str) -> Iterator[Found]:
        at = line.find(_MARK)
        while at >= 0:
            at += len(_MARK)
            found = _decoded(line, at)
            if found is not None:
                self._rules = ""
                yield from self._read(found)
            at = line.find(_MARK, at)
        for found in _older(line):
            self._rules = found["rules"]
            self._benchmark = found.get("benchmark", self._benchmark)
            yield from self._read(found)
        if (at := line.find(_SYSTEM)) >= 0 and (found := _decoded(line, at + len(_SYSTEM))):
            yield FACTS, dict(_devices(found))

    def _read(self, found: Mapping[str, Any]) -> Iterator[Found]:
        key, value, metadata = found.get("key"), found.get("value"), found.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        milliseconds = json_number(found.get("time_ms"))
        time = {"time": milliseconds / 1000} if milliseconds else {}  # 0 is the time of a line that was added later
        match key:
            case "init_start":
                self._running = True
                yield START, time
            case "run_start":
                self._running = True
                self._forget()
                self._began = time.get("time")
                if self._rules == "0.5":  # which have no other line that a program begins with
                    yield START, time
                    yield FACTS, {"model": self._benchmark, **self._implied("submission_benchmark")}
                yield FACTS, {**time, **({"run_start_seconds": time["time"]} if time else {})}
            case "run_stop":
                yield from self._end_of_run(metadata, time)
            case "block_start":
                done = self._steps_at_block(metadata)
                is_known = bool(time) and done is not None and not self._counts_epochs
                self._block = (time["time"], done or 0) if is_known else None
            case "block_stop":
                yield from self._end_of_block(metadata, time)
            case "tracked_stats" if isinstance(value, dict):
                yield from self._stats(metadata, value, time)
            case "train_loss":
                yield from self._stats(metadata, {**metadata, "loss": value}, time)
            case "eval_accuracy" | "eval_error" | "eval_loss":
                metadata = {**metadata, **self._epochs_done(found)}
                yield from self._evaluation(_Evaluation(metadata, value, time, is_loss=key == "eval_loss"))
            case "train_epoch" if (epoch := json_number(value)) is not None:
                self._epoch = epoch
                self._counted_from = epoch if self._counted_from is None else self._counted_from
            case "train_samples":
                self._train_samples = json_number(value) or 0.0
                yield from self._place(time)
            case "submission_division":
                self._is_open = value == "open"
            case str() if key in _FACT_KEYS and isinstance(value, (str, int, float)):
                self._learn(key, value)
                said = {} if self._counts_epochs and key in _OF_STEPS else {_FACT_KEYS[key]: value}
                yield FACTS, {**time, **self._implied(key), **said}
            case "opt_learning_rate_training_steps":
                self._planned = json_number(value) or 0.0

    @property
    def _counts_epochs(self) -> bool:
        """True if nothing tells how many steps an epoch has."""
        return bool(self._rules) or self._benchmark == _TRANSLATION

    def _epochs_done(self, found: Mapping[str, Any]) -> Mapping[str, float]:
        """The number of epochs before an evaluation by v0.5, whose line has the last one's number; {} if not known."""
        if self._rules != "0.5":
            return {}
        epoch = json_number(found.get("epoch")) if "epoch" in found else self._epoch
        return {} if epoch is None else {"epoch_num": epoch + (0 if self._counted_from else 1)}

    def _targets(self, time: float | None) -> Mapping[str, float]:
        """The targets of the benchmark's metrics by the rules of that time; "" is the name of the only one."""
        if self._rules:
            tables = [_SCORES_BY_RULES.get(self._rules, {})]
        else:
            tables = [*(scores for until, scores in _SCORES_BEFORE if time is not None and time < until), _SCORES]
        target = next((scores[self._benchmark] for scores in tables if self._benchmark in scores), {})
        return target if isinstance(target, Mapping) else {"": target}

    def _learn(self, key: str, value: str | float) -> None:
        match key:
            case "global_batch_size":
                self._batch = json_number(value) or 0.0
            case "max_sequence_length":
                self._sequence = json_number(value) or 0.0
            case "submission_benchmark":
                self._benchmark = str(value)
            case "target_accuracy":
                self._target_told = True

    def _implied(self, key: str) -> Mapping[str, float]:
        """The target that follows from the benchmark's name, if the log does not tell it."""
        if key != "submission_benchmark":
            return {}
        known = self._benchmark in _TARGETS and not self._target_told
        is_scored = self._rules or self._benchmark in _SCORES or _NO_LOSS.search(self._benchmark)
        scored = {"loss_optional": True} if is_scored else {}
        return {**scored, **({"target_eval_loss": _TARGETS[self._benchmark]} if known else {})}

    def _stats(
        self, metadata: Mapping[str, Any], value: Mapping[str, Any], time: Mapping[str, float]
    ) -> Iterator[Found]:
        """A step with its loss, or the means of a block; after the end of the run they are sums over it."""
        step, tells_loss = self._steps(metadata), any(name in value for name in _LOSSES)
        if not self._running or step is None:
            return
        samples_per_second = json_number(value.get("throughput"))
        self._figures |= _known(
            seconds=json_number(value.get("train_step_time", value.get("train_step_timing in s"))),
            samples_per_second_total=samples_per_second and samples_per_second / self._tokens(),
        )
        if tells_loss:
            self._tells_losses = True
            loss = next((n for name in _LOSSES if (n := json_number(value.get(name))) is not None), None)
            rate = json_number(value.get("lr", metadata.get("lr")))
            yield from self._step(step, time, _known(loss=loss, learning_rate=rate))
        elif self._figures:
            yield from self._without_loss(step, time)

    def _end_of_run(self, metadata: Mapping[str, Any], time: Mapping[str, float]) -> Iterator[Found]:
        """The end, with the time since `run_start`: of several lines that say so, the first is when it was."""
        if self._running:
            stopped, began = time.get("time"), self._began
            took = stopped - began if stopped is not None and began is not None else 0.0
            self._seconds = round(took, 3) if took > 0 else None  # as exact as `time_ms`
        self._running = False
        if reason := _REASONS.get(str(metadata.get("status"))):
            yield END, {**time, "reason": reason, **_known(run_seconds=self._seconds)}

    def _end_of_block(self, metadata: Mapping[str, Any], time: Mapping[str, float]) -> Iterator[Found]:
        """The last step of a block, with the mean speed of the block if the log does not tell it."""
        step = self._steps_at_block(metadata)
        if step is None:
            return
        if self._block and time and not self._figures:
            began, before = self._block
            if step > before and time["time"] > began:
                self._figures["samples_per_second_total"] = (step - before) * self._batch / (time["time"] - began)
        yield from self._without_loss(step, time)

    def _evaluation(self, found: _Evaluation) -> Iterator[Found]:
        step = self._steps(found.metadata)
        if step is None:
            self._unplaced += [found] if self._running and len(self._unplaced) < MOST_UNPLACED else []
            return
        yield from self._without_loss(step, found.time)  # some logs tell by nothing else how far they came
        yield self._evaluated(step, found)

    def _place(self, time: Mapping[str, float]) -> Iterator[Found]:
        """The evaluations without a step, and the last step, once the log says how many samples were trained on."""
        unplaced, self._unplaced = self._unplaced, []
        can_tell = self._batch > 0 and self._tokens() and not self._counts_epochs
        if unplaced and self._running and can_tell and not self._last:
            step = _whole(self._train_samples / self._tokens() / self._batch)
            if step:
                yield from self._without_loss(step, time)
                yield from (self._evaluated(step, found) for found in unplaced)

    def _evaluated(self, step: int, found: _Evaluation) -> Found:
        said: dict[str, Any] = {**found.time, "step": step}
        if not found.is_loss and (targets := self._targets(found.time.get("time"))):
            metric = str(found.metadata.get("metric"))
            return EVAL, {**said, **self._score(step, metric, json_number(found.value), targets)}
        is_score = not found.is_loss and (self._rules or _NO_LOSS.search(self._benchmark))
        loss = None if is_score else json_number(found.value)
        return EVAL, {**said, **_known(loss=loss)}

    def _score(self, step: int, metric: str, value: float | None, targets: Mapping[str, float]) -> Mapping[str, Any]:
        """The score of an evaluation and its distance from the target; nothing until all metrics are known."""
        if value is not None and self._benchmark in _BLEU:
            self._best = max(self._best, value)
            value = 100 * value if self._best <= 1 and not self._rules else value
        before = self._scored[1] if self._scored[0] == step else {}
        found = {**before, metric if metric in targets else "": math.nan if value is None else value}
        self._scored = (step, found)
        if not targets.keys() <= found.keys():
            return {}
        less = {name for name in targets if (name or self._benchmark) in _LESS_IS_BETTER}
        short = [
            (found[name] - target if name in less else target - found[name]) / target
            for name, target in targets.items()
        ]
        self._has_reached |= all(each <= 0 for each in short)
        if self._is_open and not self._has_reached and all(map(math.isfinite, short)):
            return {}
        told = (
            f"{name or 'score'} {found[name]:.4g} ({'at most' if name in less else 'at least'} {target:g})"
            for name, target in targets.items()
        )
        return {"score": ", ".join(told), "shortfall": max(short) if all(map(math.isfinite, short)) else math.nan}

    def _without_loss(self, step: int, time: Mapping[str, float]) -> Iterator[Found]:
        """A step by which the log shows how far it came; if it tells losses, its steps are those that have one."""
        if self._running and not self._tells_losses and step > self._last:
            if not self._last:
                yield FACTS, {**time, "by_block": True}
            yield from self._step(step, time, {})

    def _step(self, step: int, time: Mapping[str, float], figures: Mapping[str, float]) -> Iterator[Found]:
        yield Reading(values={"step": step, **time, **self._figures, **figures})
        self._last, self._figures = max(self._last, step), {}

    def _steps(self, metadata: Mapping[str, Any]) -> int | None:
        """The step of a line; None without a batch size that tells it."""
        if self._counts_epochs:
            epochs = json_number(metadata.get("epoch_num"))
            return None if epochs is None else _whole(epochs)
        if (steps := json_number(metadata.get("step_num"))) is not None:
            return _whole(steps)
        name, samples = next(
            ((name, n) for name in _SAMPLES if (n := json_number(metadata.get(name))) is not None), ("", None)
        )
        if name == "epoch_num" and samples is not None and samples < self._batch:  # epochs indeed, not samples
            if samples <= self._planned < samples * self._train_samples / self._batch:
                return _whole(samples)  # or steps: the learning rate is planned for no more of them
            samples = samples * self._train_samples if self._train_samples else None
        if samples is None or self._batch <= 0 or not self._tokens():
            return None
        return _whole(samples / self._tokens() / self._batch)

    def _steps_at_block(self, metadata: Mapping[str, Any]) -> int | None:
        """The steps at the border of a block: where both are given, the samples are those of the block alone."""
        if "samples_count" in metadata and (step := json_number(metadata.get("step"))) is not None:
            return _whole(step)
        return self._steps(metadata)

    def _tokens(self) -> float:
        """Of the unit that the benchmark counts in, those in a sample."""
        return self._sequence if self._benchmark == "gpt3" else 1.0


def _devices(system: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The number and the kind of a system's devices, as far as its description says so."""
    counts = [_COUNT.fullmatch(str(system.get(name))) for name in ("number_of_nodes", "accelerators_per_node")]
    if devices := math.prod(int(count[0]) if count else 0 for count in counts):
        yield "num_devices", devices
    model = system.get("accelerator_model_name")
    if isinstance(model, str) and model.strip():
        yield "device_kind", model.strip()


def _older(line: str) -> Iterator[dict[str, Any]]:
    """The lines of v0.6 and v0.5 in it, as objects like those of today."""
    for said in _LINE_06.finditer(line):
        held = _decoded(line, said.end()) or {}
        yield {
            "rules": "0.6",
            "time_ms": 1000 * float(said["seconds"]),
            "key": said["key"],
            "value": _unquoted(held.get("value")),
            "metadata": held.get("metadata"),
        }
    for said in _LINE_05.finditer(line):
        value = _value(line, said.end())
        held = value if isinstance(value, dict) else {"value": value}
        found = {
            "rules": said["rules"],
            "benchmark": said["benchmark"],
            "time_ms": 1000 * float(said["seconds"]),
            "key": said["key"],
        }
        if said["key"] == "run_stop" and isinstance(held.get("success"), bool):
            found["metadata"] = {"status": "success" if held["success"] else "aborted"}
        yield {**{name: held[name] for name in ("epoch", "value") if name in held}, **found}


def _unquoted(value: Any) -> Any:
    """A number that some programs print as text."""
    return float(value) if isinstance(value, str) and _AS_TEXT.fullmatch(value) else value


def _value(line: str, at: int) -> Any:
    """The value of a text of JSON; None for any other text."""
    try:
        return _DECODER.raw_decode(line, at)[0]
    except (ValueError, RecursionError):
        return None


def _decoded(line: str, at: int) -> Mapping[str, Any] | None:
    """The object behind the mark; None for one that was cut or broken."""
    found = _value(line, at + len(line[at:]) - len(line[at:].lstrip()))
    return found if isinstance(found, dict) else None


def _known(**values: float | None) -> dict[str, float]:
    """Those of some values that are known."""
    return {name: value for name, value in values.items() if value is not None}


def _whole(number: float) -> int | None:
    return int(number) if 0 <= number < 1e15 else None


FAMILY = Family(name="mlperf", counted_from=1, custom_reader=_Log, custom_words=(_MARK, _SYSTEM, _MARK_06, _MARK_05))
