"""Levanter: `Progress on:train 1.17kit/10.0kit rate:3.2it/s remaining:45:55 elapsed:06:05 postfix:loss=3.85`.

A line a minute where there is no terminal, else `train:  12%|█▏ | 120/1000 [00:30<03:40, 4.00it/s, loss=3.21]`. From
1000 steps on, the line gives three digits of their number; the total is then no number to plan by. Losses have three
digits too. The rate is a running mean. Steps between two lines are in no line, which is no gap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import FACTS, Family, Found, Reading, loss_of, note
from seatrial.logs.numbers import NUMBER, quantity

_LINE = re.compile(
    r"Progress on:train (?P<n>\d{1,12}(?:\.\d{1,3})?)(?P<kilo>[kM]?)it"
    r"/(?P<of>\d{1,12}(?:\.\d{1,3})?)(?P<of_kilo>[kM]?)it "
    rf"rate:(?:(?P<rate>[\d.,]+)(?P<per>it/s|s/it)|-) .{{0,80}}?postfix:loss=(?P<loss>{NUMBER})(?=[\s,]|$)",
    re.IGNORECASE,
)
_BAR = re.compile(
    r"(?<![\w.])train: +\d+%\|[^|]{0,300}\| *(?P<n>\d{1,12})(?P<kilo>)/(?P<of>\d{1,12})(?P<of_kilo>) "
    rf"\[[^\[\]]{{1,40}}, +(?:(?P<rate>[\d.,]+)(?P<per>it/s|s/it)|\?it/s), loss=(?P<loss>{NUMBER})\]",
    re.IGNORECASE,
)
_SCALES = {"": 1, "k": 1000, "m": 1_000_000}


class _Log:
    """True if it has been said that only some of the steps are in the log."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, line: str) -> Iterator[Found]:
        for found in (*_LINE.finditer(line), *_BAR.finditer(line)):
            if not self._is_said:
                self._is_said = True
                yield FACTS, {"by_block": True}
            values = {"step": round(float(found["n"]) * _SCALES[found["kilo"].lower()])}
            total = {} if found["of_kilo"] else {"total": round(float(found["of"]))}
            rate = quantity(found["rate"] or "") or 0.0
            pace = {"steps_per_second": rate if found["per"] == "it/s" else 1 / rate} if rate > 0 else {}
            yield Reading(values={**values, **total, **pace, **loss_of(found["loss"])}, inferred=True)


FAMILY = Family(
    name="levanter",
    counted_from=1,
    custom_reader=_Log,
    custom_words=("Progress on:train ", "train: "),
    notes=(
        note("checkpoint", "Resuming training from step ",
             r"Resuming training from step (?P<step>[1-9]\d{0,11})\b", action="restore"),
        note("eval", "eval loss: ", r"\blevanter\.eval\b.{0,80}?\beval loss: (?P<loss>\d+\.\d{3}|nan|inf)\s*$"),
        note("eval", "validation loss: ",
             r"\blevanter\.callbacks\b.{0,80}?\bvalidation loss: (?P<loss>\d+\.\d{3}|nan|inf)\s*$"),  # until 2024
    ),
)  # fmt: skip
