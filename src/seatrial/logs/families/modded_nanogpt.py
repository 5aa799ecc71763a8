"""modded-nanogpt: `step:12/1390 train_loss:7.9123 train_time:331ms step_avg:165.50ms`.

Since 2025 without the loss, so that only the evaluations tell one; in the track for optimizers, there are only these:
`step:125/3400 val_loss:4.919 train_time:25.772s step_avg:206.17ms`. The time is the sum over all steps, without
evaluations, and set back once, after warm-up; `step_avg` is its mean.

Parameter Golf, which is made of it, has bits per byte beside the loss of an evaluation, and a limit of time at which it
ends a run: `stopping_early: wallclock_cap train_time:600021ms step:12950/20000`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import END, EVAL, FACTS, Family, Found, Reading, loss_of, note
from seatrial.logs.numbers import NUMBER

_LINE = re.compile(
    rf"\bstep:(?P<step>\d{{1,12}})/(?P<total>\d{{1,12}}) (?:(?P<of>train|val)_loss:(?P<loss>{NUMBER}) )?"
    r"(?:val_bpb:\S{1,30} )?"
    r"train_time:(?P<time>\d{1,15}(?:\.\d{1,6})?)(?P<unit>ms|s) step_avg:",
    re.IGNORECASE,
)
MOST_TIMES = 16  # steps that one rank may be behind another
_STOPPED = re.compile(
    r"\bstopping_early: wallclock_cap train_time:\d{1,15}(?:\.\d{1,6})?m?s step:(?P<step>\d{1,12})/\d{1,12}\s*$"
)


class _Log:
    """The times of the last steps, from which that of the next one follows; another rank may print them later."""

    def __init__(self) -> None:
        self._times: dict[int, float] = {}
        self._evaluated: int | None = None
        self._only_evaluates = True  # so far

    def __call__(self, line: str) -> Iterator[Found]:
        if stopped := _STOPPED.search(line):
            yield END, {"reason": "time_spent", "steps": stopped["step"]}
        for found in _LINE.finditer(line):
            step, ms = int(found["step"]), float(found["time"]) * (1 if found["unit"] == "ms" else 1000)
            evaluates = found["of"] == "val"
            if evaluates:
                yield EVAL, {"step": step, "loss": found["loss"]}
            self._only_evaluates &= evaluates
            evaluated = self._evaluated if self._only_evaluates else None
            if not evaluates or evaluated is not None:
                before = step - 1 if evaluated is None else evaluated
                if evaluated is not None and before <= step - before:  # else the log's beginning is gone
                    yield FACTS, {"by_block": True}  # steps between two evaluations are in no line
                elapsed = (ms - self._times.get(before, ms if before else 0)) / max(1, step - before)
                values = {"step": step, "total": int(found["total"])}
                seconds = {"seconds": elapsed / 1000} if elapsed > 0 else {}
                trained = {} if evaluates else loss_of(found["loss"] or "")
                yield Reading(values={**values, **seconds, **trained})
            if evaluates:
                self._evaluated = step
            self._times = {**dict(list(self._times.items())[-MOST_TIMES:]), step: ms}


FAMILY = Family(
    name="modded_nanogpt",
    counted_from=1,
    loss_optional=True,
    custom_reader=_Log,
    custom_words=("train_time:",),
    notes=(
        note("end", "peak memory allocated: ", r"peak memory allocated: \d+ MiB reserved: \d+ MiB"),
        note("facts", "Running PyTorch ", r"Running PyTorch (?P<versions__torch>\S+) compiled for CUDA"),
    ),
)
