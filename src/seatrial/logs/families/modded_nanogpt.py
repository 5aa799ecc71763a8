"""modded-nanogpt: `step:12/1390 train_loss:7.9123 train_time:331ms step_avg:165.50ms`.

Since 2025 without the loss, so that only the evaluations tell one. The time is the sum over all steps, without
evaluations, and set back once, after warm-up; `step_avg` is its mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import Family, Field, Found, Reading, note, read_values
from seatrial.logs.numbers import NUMBER

_LINE = re.compile(
    rf"\bstep:(?P<step>\d{{1,12}})/(?P<total>\d{{1,12}}) (?:(?P<of>train|val)_loss:(?P<loss>{NUMBER}) )?"
    r"train_time:(?P<ms>\d{1,15})ms step_avg:",
    re.IGNORECASE,
)
MOST_TIMES = 16  # steps that one rank may be behind another
_FIELDS = {"loss": Field(name="loss")}
_EVAL = note("eval", "val_loss:", _LINE)


class _Log:
    """The times of the last steps, from which that of the next one follows; another rank may print them later."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}

    def __call__(self, line: str) -> Iterator[Found]:
        for found in _LINE.finditer(line):
            step, ms = int(found["step"]), int(found["ms"])
            elapsed = ms - self._times.get(step - 1, ms if step > 1 else 0)
            self._times = {**dict(list(self._times.items())[-MOST_TIMES:]), step: ms}
            if found["of"] == "val":
                yield _EVAL, {"step": step, "loss": found["loss"]}
            else:
                values = {"step": step, "total": int(found["total"])}
                seconds = {"seconds": elapsed / 1000} if elapsed > 0 else {}
                yield Reading(
                    values={**values, **seconds, **read_values([("loss", found["loss"] or "")], _FIELDS).values}
                )


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
