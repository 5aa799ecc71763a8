"""Steps that a trainer counts from the start again in each epoch, as steps of the run: `Epoch [2/3], Step [40/500]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from seatrial.logs.grammar import Field, Reading, read_values


class EpochSteps:
    """A `custom_reader`: the steps of all epochs before are added to each.

    `head` finds the step, and maybe its total; `epoch` the epoch, and maybe the `total` of these; `pair` finds the
    other values. Without a total, an epoch has as many steps as its last line says.
    """

    def __init__(
        self, head: re.Pattern[str], epoch: re.Pattern[str], pair: re.Pattern[str], fields: Mapping[str, Field]
    ) -> None:
        self._head, self._epoch, self._pair, self._fields = head, epoch, pair, fields
        self._before = 0  # steps of the epochs before this one
        self._last: tuple[int, int] | None = None  # the epoch and the step of the last line

    def __call__(self, line: str) -> Iterator[Reading]:
        found, epoch = self._head.search(line), self._epoch.search(line)
        values = read_values(self._pair.findall(line), self._fields).values if found and epoch else {}
        if found is None or epoch is None or "loss" not in values:
            return
        groups = found.groupdict()
        step, total = int(groups["step"].replace(",", "")), groups.get("total")
        now, epochs = int(epoch["epoch"]), epoch["total"]
        if self._last and now < self._last[0]:  # another run
            self._before = 0
        elif self._last and now > self._last[0] and step <= self._last[1]:
            self._before += int(total) if total else self._last[1]
        self._last = (now, step)
        of = {"total": int(total) * int(epochs)} if total and epochs else {}
        yield Reading(values={"step": self._before + step, **of, **values}, alike=False)
