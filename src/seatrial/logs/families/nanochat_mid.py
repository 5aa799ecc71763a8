"""nanochat's mid_train and chat_sft: `step 00012 (1.23%) | loss: 2.412345 | lrm: 1.00 | dt: 331.20ms | tok/sec: …`.

They go once over their data, so that no line has a total; that they did so is said by the time which they took, in the
last of their lines. Steps count from 1; all else is as in `nanochat`, which reads their other lines. In the log of a
whole `speedrun`, the steps are those of base_train alone: these are trainings of their own, not attempts of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.families import nanochat
from seatrial.logs.grammar import END, Family, Found, Reading, read_values

_STEP = re.compile(r"\bstep (?P<step>\d{1,12}) \(\d{1,3}\.\d+%\) \| (?=loss: )")
_OF_BASE = re.compile(r"\bstep \d+/\d+ \(")


class _Log:
    """The end is that of this program only behind one of its own lines."""

    def __init__(self) -> None:
        self._is_own = False

    def __call__(self, line: str) -> Iterator[Found]:
        if found := _STEP.search(line):
            pairs = nanochat.FAMILY.pair.findall(line, found.end())
            values = read_values(pairs, nanochat.FAMILY.fields).values
            if "loss" in values and "seconds" in values:  # else it was cut
                self._is_own = True
                yield Reading(values={"step": int(found["step"]), **values}, alike=False)
        elif _OF_BASE.search(line):
            self._is_own = False
        elif self._is_own and nanochat.DONE.search(line):
            yield END, {"planned_epochs": "1"}


FAMILY = Family(
    name="nanochat_mid",
    counted_from=1,
    fallback=True,
    custom_reader=_Log,
    custom_words=("| loss: ", "Total training time: "),
)
