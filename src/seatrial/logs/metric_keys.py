"""The keys of metrics files for a step and its figures: key → field, in the order of preference.

Spellings of Hugging Face's Trainer, ms-swift, LLaMA-Factory (`trainer_log.jsonl`), MaxText (`metrics_file`),
torchtitan, Megatron (as W&B exports it), PyTorch Lightning, Composer, OLMo, GPT-NeoX and Seatrial's own CSV report.
Keys are compared in lower case, with `_` for blanks and hyphens. What may mean two things (`tokens_per_second`: of a
device or of all?) is not in the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

from seatrial.events import FIRST_CLOCK
from seatrial.logs.grammar import Field, not_finite
from seatrial.logs.numbers import Commas, commas_for, commas_of, json_number, quantity

STEP = (
    "train/global_step", "trainer/global_step", "global_step/max_steps", "global_step", "train/step", "training_step",
    "step", "current_steps", "iteration", "iter", "train_iter", "update", "num_updates", "_step",
)  # fmt: skip
TOTAL = ("max_steps", "total_steps", "train_iters", "planned_steps")
EPOCH = ("epoch", "train/epoch")
TIME = ("_timestamp", "timestamp", "wall_time", "time")  # seconds since the epoch, or milliseconds
EVAL_LOSS = (
    "eval_loss", "eval/loss", "val_loss", "val/loss", "valid_loss", "valid/loss", "validation_loss", "validation/loss",
    "validation_metrics/loss", "loss/val", "loss/eval", "evaluation/avg_loss", "eval/avg_loss", "lm_loss_validation",
    "validation/lm_loss",
)  # fmt: skip

LAST_CLOCK = 1e11  # the year 5138: a time behind it does not count seconds

# By the name of each, which is among its keys where a guess may find it.
_FIELDS: Mapping[str, tuple[Field, tuple[str, ...]]] = {
    "loss": (Field(name="loss"), (
        "train/loss", "train_loss", "loss", "training_loss", "train/lm_loss", "lm_loss", "learning/loss", "loss/train",
        "loss/train/total", "loss_metrics/global_avg_loss", "train/loss_step", "train_loss_step", "reduced_train_loss",
        "train/ce_loss", "train/crossentropyloss",
    )),
    "seconds": (Field(name="seconds"), (
        "seconds", "step_seconds", "step_time_seconds", "perf/step_time_seconds", "step_time_s", "step_time(s)",
        "iteration_time", "time_metrics/end_to_end(s)", "train_step_timing_in_s", "seconds_per_step", "sec_per_step",
        "s/it",
    )),
    "milliseconds": (Field(name="seconds", per=1000), (
        "milliseconds", "ms", "step_time_ms", "step_time(ms)", "dt_ms", "iter_time_ms", "ms_per_step",
        "elapsed_time_per_iteration_(ms)",
    )),
    "grad_norm": (Field(name="grad_norm"), (
        "learning/raw_grad_norm", "grad_norm", "train/grad_norm", "learning/grad_norm", "gradient_norm",
        "optim/total_grad_norm",
    )),
    "learning_rate": (Field(name="learning_rate"), (
        "learning_rate", "train/learning_rate", "lr", "train/lr", "learning/current_learning_rate", "lr_adamw",
        "lr_adam", "optim/lr",
    )),
    "tokens": (Field(name="tokens_per_second_per_device"), (
        "tokens_per_second_per_device", "tokens_per_second_per_gpu", "tokens_per_sec_per_gpu",
        "perf/per_device_tokens_per_sec", "throughput(tps)", "throughput/device/tokens_per_sec",
        "throughput/device/tokens_per_second",
    )),
    "tflops": (Field(name="tflops_per_second_per_device"), (
        "tflops_per_second_per_device", "tflops_per_gpu", "tflops_per_sec_per_gpu", "perf/per_device_tflops_per_sec",
        "tflops",
    )),
    "mfu": (Field(name="mfu"), ("mfu", "throughput/device/mfu", "perf/mfu")),
    "mfu_percent": (Field(name="mfu", per=100), ("mfu(%)", "mfu_percent")),
    "perplexity": (Field(name="perplexity"), ("perplexity", "ppl", "train/perplexity")),
    "consumed_samples": (Field(name="consumed_samples"), ("consumed_samples",)),
    "consumed_tokens": (Field(name="consumed_tokens"), ("consumed_tokens", "num_input_tokens_seen")),
}  # fmt: skip
FIELDS: tuple[tuple[str, Field], ...] = tuple((key, field) for field, keys in _FIELDS.values() for key in keys)
LOSS = _FIELDS["loss"][1]
SPEEDS = ("seconds", "tokens_per_second_per_device", "tflops_per_second_per_device")

Row = Mapping[str, Any]  # a value of JSON, or the text of a cell, by its key


def plain(key: str) -> str:
    """A key as it is compared."""
    return key.strip().lower().replace(" ", "_").replace("-", "_")


def name_of(field: Field) -> str:
    """The name of a field in the table."""
    return next(name for name, (own, _) in _FIELDS.items() if own == field)


def number(value: Any, commas: Commas = "thousands") -> float | None:
    """A number of JSON or the text of one; None for anything else, an empty cell too."""
    if isinstance(value, str):
        return quantity(value, commas=commas) if value.strip() else None
    return json_number(value)


def first(row: Row, keys: tuple[str, ...], commas: Commas = "thousands") -> float | None:
    """The number of the first of these keys that has one."""
    for key in keys:
        if key in row and (found := number(row[key], commas)) is not None:
            return found
    return None


def time_of(row: Row) -> float | None:
    """When a row was written, in seconds since the epoch; None if it does not say."""
    time = first(row, TIME)
    while time is not None and LAST_CLOCK < time < math.inf:  # milliseconds, or parts of these
        time /= 1000
    return time if time is not None and time >= FIRST_CLOCK else None


def commas_in(row: Row) -> Commas:
    """The meaning of a comma in the values of a row."""
    if not any(isinstance(value, str) and "," in value for value in row.values()):
        return "thousands"
    named = chain(((key, field.name) for key, field in FIELDS), ((key, "loss") for key in EVAL_LOSS))
    return commas_of((name, value) for key, name in named if isinstance(value := row.get(key), str))


def values_of(row: Row) -> dict[str, float]:
    """The values of a row's step by `Field.name`; a loss beside the loss, by its key, where it is not finite."""
    found: dict[str, float] = {}
    loss, commas = "", commas_in(row)
    for key, field in FIELDS:
        if field.name not in found and key in row and (value := _value_of(field, row[key], commas)) is not None:
            found[field.name] = value
            loss = key if field.name == "loss" else loss
    if not math.isfinite(found.get("loss", 0.0)):
        return found
    others = ((key, str(value)) for key, value in row.items() if "loss" in key and key not in (loss, *EVAL_LOSS))
    return {**found, **not_finite(list(others), None, found.keys())}


def _value_of(field: Field, written: Any, commas: Commas) -> float | None:
    """The value of a field; an MFU above 1 is percent (nanoGPT, OLMo-core), a negative one stands for none yet."""
    value = number(written, commas_for(field.name, commas))
    if value is None or (field.name == "mfu" and value < 0):
        return None
    return value / (100 if field.name == "mfu" and value > 1 else field.per)
