"""Steps that a trainer counts from the start again in each epoch, as steps of the run: `Epoch [2/3], Step [40/500]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from seatrial.logs.epoch_count import EpochCount
from seatrial.logs.grammar import END, Field, Found, Reading
from seatrial.logs.guess_keys import values_in

EPOCH_WORDS = ("poch", "POCH")  # lines that say of the epochs how many there are, and that one is over
# In a printed configuration, or on a command line.
_ASKED = re.compile(
    r"(?:^\W{0,8}|\s--)(?:num_|num_train_|n_|max_|total_|train_)?epochs?['\"]?(?: ?[:=] ?|\s{1,8})(\d{1,6}),?"
    r"\s*(?:$|--)",
    re.IGNORECASE,
)
_OVER = re.compile(
    r"(?<![a-z])epoch ?[\[(#:]{0,2} ?(?P<epoch>\d{1,6})(?: ?(?:/|of) ?(?P<epochs>\d{1,6}))?[\])]? (?:is |was |has )?"
    r"(?:done|finished|completed?|ended)(?![a-z])",
    re.IGNORECASE,
)


class EpochSteps:
    """A `custom_reader`: the steps of all epochs before are added to each.

    `head` finds the step, and maybe its total; `epoch` the epoch, and maybe the `total` of these. The run is at its end
    when its last epoch is said to be over, if the configuration or that line says how many there are.
    """

    def __init__(self, head: re.Pattern[str], epoch: re.Pattern[str], fields: Mapping[str, Field]) -> None:
        self._head, self._epoch, self._fields = head, epoch, fields
        self._count = EpochCount()
        self._last: int | None = None  # epoch
        self._asked = 0  # epochs, by the configuration

    def __call__(self, line: str) -> Iterator[Found]:
        yield from self._step(line)
        if asked := _ASKED.search(line):
            self._asked = int(asked[1])
        if (over := _OVER.search(line)) and self._last == int(over["epoch"]):
            epochs = int(over["epochs"] or 0) or self._asked
            if epochs and int(over["epoch"]) == epochs - (self._count.first_epoch == 0):
                yield END, {"planned_epochs": str(epochs)}

    def _step(self, line: str) -> Iterator[Found]:
        found, epoch = self._head.search(line), self._epoch.search(line)
        values = values_in(line, self._fields) if found and epoch else {}
        if found is None or epoch is None or "loss" not in values:
            return
        groups = found.groupdict()
        step, total = int(groups["step"].replace(",", "")), groups.get("total")
        now, epochs = int(epoch["epoch"]), epoch["total"]
        of_run = self._count.step_of_run(now, step, int(total) if total else None)
        self._last = now
        of = {"total": int(total) * int(epochs)} if total and epochs else {}
        yield Reading(values={"step": of_run, **of, **values}, alike=False)
