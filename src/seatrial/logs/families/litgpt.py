"""LitGPT: `Epoch 1 | iter 512 step 64 | loss train: 7.912, val: n/a | iter time: 331.20 ms (step) remaining time: …`.

And Lit-GPT and TinyLlama before it: `iter 512 step 64: loss 7.9123, iter time: 331.20ms (optimizer.step)`. An iteration
is a micro batch; lines of those that end no step have no mark behind their time, and are not read. The time is that of
the last micro batch, and that of the step only where there is but one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import START, Family, Field, Found, Reading, note, read_values
from seatrial.logs.numbers import NUMBER

_LINE = re.compile(
    r"\biter (?P<iter>\d{1,12}) (?:\| )?step (?P<step>\d{1,12})(?: \||:) loss (?:train: )?"
    rf"(?P<loss>{NUMBER}),[^|]{{0,60}}?(?:\| )?"
    rf"\s?iter time: (?P<ms>{NUMBER}) ?ms \((?:optimizer\.)?step\)",
    re.IGNORECASE,
)
_FIELDS = {"loss": Field(name="loss"), "ms": Field(name="seconds", per=1000)}
_MAX_STEPS = re.compile(r"\bmax_steps=(\d+)[,)]")
_NEAR = 30  # lines that the arguments of the training are printed over


class _Log:
    """True if the arguments of the training are being printed."""

    def __init__(self) -> None:
        self._lines_left = 0

    def __call__(self, line: str) -> Iterator[Found]:
        if "TrainArgs(" in line:
            self._lines_left = _NEAR
        if self._lines_left:
            self._lines_left -= 1
            if planned := _MAX_STEPS.search(line):
                yield START, {"planned_steps": planned[1]}
        for found in _LINE.finditer(line):
            pairs = [("loss", found["loss"]), *([("ms", found["ms"])] if found["iter"] == found["step"] else [])]
            yield Reading(values={"step": int(found["step"]), **read_values(pairs, _FIELDS).values})


FAMILY = Family(
    name="litgpt",
    counted_from=1,
    custom_reader=_Log,
    custom_words=("iter time: ", "TrainArgs(", " max_steps="),
    notes=(
        note("start", "Measured TFLOPs: ", r"(?:^|\s)Measured TFLOPs: [\d.]+\s*$"),
        note("start", "Number of trainable parameters: ", r"Number of trainable parameters: [\d,]+\s*$"),
        note("checkpoint", "Resuming training from ", r"Resuming training from (?=\S)(?!step\b)", action="restore"),
        note("eval", ": val loss ", rf"\biter \d+: val loss (?P<loss>{NUMBER}), val time: "),
        note("eval", "Final evaluation | val loss: ", rf"Final evaluation \| val loss: (?P<loss>{NUMBER}) \|"),
        note("end", "| - Training Time ", r"\| - Training Time +: [\d.]+ s"),
        note("end", "Training time: ", r"(?:^|\s)Training time: [\d.]+s\s*$"),
    ),
)
