"""Lightning without a progress bar, by its checkpoints: `Epoch 3, global step 356: 'val_loss' was not in top 1`.

`… reached 0.31 (best 0.31), saving model to …` has the result, which is only told where it is the best so far: a
course of these alone always falls. The steps count only where no other family reports any. It stands before `lightning`
among the families: of two lines that say that a run is completed, the first counts, and that one says less.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import END, EVAL, Family, Found, Reading
from seatrial.logs.numbers import NUMBER

_EPOCH = re.compile(
    rf"\bEpoch (?P<epoch>\d{{1,9}}), global step (?P<step>\d{{1,12}}): '(?P<name>[^']{{1,60}})' "
    rf"(?:was not in top \d+|reached (?P<value>{NUMBER}))(?=\s|$)",
    re.IGNORECASE,
)
_STOPPED = re.compile(r"Trainer\.fit` stopped: `max_epochs=(?P<epochs>\d{1,9})` reached")


class _Log:
    def __init__(self) -> None:
        self._epochs = 0  # that are done, by the last line

    def __call__(self, line: str) -> Iterator[Found]:
        if found := _EPOCH.search(line):
            self._epochs = int(found["epoch"]) + 1
            yield Reading(values={"step": int(found["step"])}, alike=False)
            if found["value"] and "loss" in found["name"].lower():
                yield EVAL, {"step": found["step"], "loss": found["value"]}
        if (stopped := _STOPPED.search(line)) and int(stopped["epochs"]) == self._epochs:
            yield END, {"planned_epochs": stopped["epochs"]}


FAMILY = Family(
    name="lightning_checkpoints",
    counted_from=1,
    fallback=True,
    custom_reader=_Log,
    custom_words=(", global step ", "Trainer.fit` stopped: `max_epochs="),
)
