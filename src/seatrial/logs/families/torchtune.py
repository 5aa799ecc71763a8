"""torchtune: the progress bar `1|50|Loss: 2.1040: 10%|█ | 50/500 [00:41<06:10, 1.21it/s]`, and its loggers' lines.

Those are `Step 50 | loss:2.1040 lr:2e-05 tokens_per_second_per_gpu:4512.3 …`; the tokens are those in the loss alone.
The progress bar says epoch and step; it counts the steps of an epoch. It is not read where the lines come too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import FACTS, Family, Field, Found, Reading, loss_of, note
from seatrial.logs.numbers import NUMBER

_BAR = re.compile(
    rf"(?<!\d)\d{{1,6}}\|(?P<step>\d{{1,12}})\|Loss: (?P<loss>{NUMBER}):"
    r"(?: +\d+%\|[^|]{0,300}\| *\d+/(?P<of>\d{1,12}) )?",
    re.IGNORECASE,
)
_EPOCHS = re.compile(r"\s*epochs: (\d{1,6})\s*$")


class _Log:
    """The number of epochs, by the configuration; how many steps an epoch has; whether there are lines."""

    def __init__(self) -> None:
        self._epochs = self._of = 0
        self._has_lines = False

    def __call__(self, line: str) -> Iterator[Found]:
        if epochs := _EPOCHS.match(line):
            self._epochs, self._of = int(epochs[1]), 0
        self._has_lines |= FAMILY.head.search(line) is not None
        for drawn in _BAR.finditer(line):
            if drawn["of"] and int(drawn["of"]) != self._of:
                self._of = int(drawn["of"])
                if self._epochs:
                    yield FACTS, {"planned_steps": self._epochs * self._of}
            if not self._has_lines:
                yield Reading(values={"step": int(drawn["step"]), **loss_of(drawn["loss"])})


FAMILY = Family(
    name="torchtune",
    anchors=("Step ", " | ", "loss:"),
    head=re.compile(r"\bStep (?P<step>\d+) \| (?=\S+:)"),
    # A line ends with a blank: what stands at its end without one may be cut.
    pair=re.compile(rf"(?<=\s)([A-Za-z_][\w/]*):(?:tensor\()?({NUMBER})(?=[\s,)])", re.IGNORECASE),
    whole=re.compile(r"(?<=\s)loss:\S+\s"),
    fields={
        "loss": Field(name="loss"),
        "lr": Field(name="learning_rate"),
        "grad_norm": Field(name="grad_norm"),
        "tokens_per_second_per_gpu": Field(name="tokens_per_second_per_device"),
        "peak_memory_reserved": Field(name="memory_bytes", per=2.0**-30),
    },
    counted_from=1,
    custom_reader=_Log,
    custom_words=("|Loss: ", "loss:", "epochs: "),
    notes=(note("start", "with resolved config:", r"Running \w+ with resolved config:"),),
)
