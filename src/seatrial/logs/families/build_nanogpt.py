"""build-nanogpt's `log.txt`, and what is spelled like it: `250 train 4.123456`, `250 val 4.1021`, `250 hella 0.2534`.

Steps count from 0, and no line has a total. The accuracy on HellaSwag is no loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import EVAL, Family, Found, Reading, note
from seatrial.logs.numbers import NUMBER, quantity

_LINE = re.compile(
    rf"^(?P<step>\d{{1,9}}) (?:(?P<split>train|val)|\w{{1,20}}_ppl {NUMBER} \w{{1,20}}_loss) (?P<loss>{NUMBER})\s*$",
    re.IGNORECASE,
)


class _Log:
    def __call__(self, line: str) -> Iterator[Found]:
        found = _LINE.match(line)
        loss = quantity(found["loss"]) if found else None
        if found is None or loss is None or not ("." in found["loss"] or found["loss"][-1].isalpha()):
            return
        if (found["split"] or "").lower() == "train":
            yield Reading(values={"step": int(found["step"]), "loss": loss}, alike=False)
        else:
            yield EVAL, {"step": found["step"], "loss": found["loss"]}


FAMILY = Family(
    name="build_nanogpt",
    counted_from=0,
    custom_reader=_Log,
    custom_words=(" train ", " val ", "_loss "),
    notes=(note("checkpoint", "# resumed at ", r"^# resumed at \S+ from step (?P<step>\d+)\s*$", action="restore"),),
)
