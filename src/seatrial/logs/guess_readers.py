"""Readers of guessed spellings of evaluations alone, and of lines without a step.

Each is a `custom_reader`, made for the keys that the guess has chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from seatrial.logs.grammar import EVAL, FACTS, Field, Found, Reading
from seatrial.logs.guess_keys import values_in


class EvalSteps:
    """Evaluations of a program whose training has no losses: each is a step, and its result."""

    def __init__(self, head: re.Pattern[str], fields: Mapping[str, Field]) -> None:
        self._head, self._fields = head, fields

    def __call__(self, line: str) -> Iterator[Found]:
        found = self._head.search(line)
        loss = values_in(line, self._fields).get("loss") if found else None
        if found and loss is not None:
            step, total = int(found["step"].replace(",", "")), found.groupdict().get("total")
            yield Reading(values={"step": step, **({"total": int(total)} if total else {})}, alike=False)
            yield EVAL, {"step": str(step), "loss": repr(loss)}


class CountedLines:
    """Lines with a loss and no step: they are counted, and nobody knows how many steps each stands for."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        self._lines = 0

    def __call__(self, line: str) -> Iterator[Found]:
        values = values_in(line, self._fields)
        if "loss" in values:
            self._lines += 1
            yield FACTS, {"lines_counted": True}
            yield Reading(values={"step": self._lines, **values}, alike=False, inferred=True)
