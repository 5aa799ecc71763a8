"""A guessed trainer by its progress bar, as tqdm draws it: `10%|█ | 50/500 [00:41<06:10, loss=2.1]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from seatrial.logs.grammar import FACTS, Field, Found, Reading, read_values
from seatrial.logs.guess_keys import PAIR, Pair

# tqdm's: what is said before the bar, the count, and behind the times whatever the program adds.
_DRAWN = re.compile(
    r"(?P<before>[^|]{0,200}?)(?<!\d)\d{1,3}%\|[^|]{0,300}\| *(?P<n>\d{1,9})/(?P<total>\d{1,9}) "
    r"\[[^\[\],]{0,40},[^\[\],]{0,40}(?:, (?P<behind>[^\n]{0,600}))?"
)
_EPOCH = re.compile(r"(?i)(?<![a-z])epoch(?![a-z])\W{0,3}(?P<epoch>\d{1,6})(?:\]?(?: ?/ ?| of )(?P<epochs>\d{1,6}))?")


class Drawing(NamedTuple):
    """A progress bar as it was drawn once; with the `pairs` beside it. 0 for an epoch that it does not name."""

    n: int
    total: int
    epoch: int
    epochs: int
    name: str
    pairs: list[Pair]


def bar_in(line: str) -> Drawing | None:
    """The last progress bar of a line that says anything beside its count."""
    found = next(reversed(list(_DRAWN.finditer(line))), None)
    if found is None:
        return None
    before, behind = found["before"].strip(), found["behind"] or ""
    epoch = _EPOCH.search(before)
    of = (int(epoch["epoch"]), int(epoch["epochs"] or 0)) if epoch else (0, 0)
    name = re.sub(r"[\d.]+", "", re.split(r"[(,|]|loss", before, maxsplit=1)[0]).strip().lower()
    pairs = [pair for text in (behind, before) for pair in PAIR.findall(text)]
    return Drawing(int(found["n"]), int(found["total"]), *of, name, pairs)


class BarSteps:
    """A `custom_reader` of a progress bar, which is drawn again and again: of each count, the last drawing is read.

    Progress bars of another `name` count something else. `restarts` says that those of this log begin again without a
    word of an epoch: then each counts on from the one before, and nobody knows how many there should be. A step is held
    back until another count, or a line without any.
    """

    def __init__(self, fields: Mapping[str, Field], *, name: str, restarts: bool) -> None:
        self._fields, self._name, self._restarts = fields, name, restarts
        self._before = 0  # steps of the bars before this one
        self._drawn: Drawing | None = None
        self._waits: Reading | None = None

    def __call__(self, line: str) -> Iterator[Found]:
        bar = bar_in(line)
        if bar is None:
            yield from self.finish()
            return
        values = read_values(bar.pairs, self._fields).values if bar.name == self._name else {}
        if "loss" not in values:
            return
        drawn = self._drawn
        if drawn and (bar.n, bar.epoch, bar.total) != (drawn.n, drawn.epoch, drawn.total):
            yield from self.finish()
            self._count_on(drawn, bar)
        self._drawn = bar
        if bar.n:
            planned = 0 if self._restarts or (bar.epoch and not bar.epochs) else bar.total * max(1, bar.epochs)
            of = {"total": planned} if planned else {}
            yield FACTS, {"by_block": True}  # a bar is drawn by the clock
            self._waits = Reading(values={"step": self._before + bar.n, **of, **values}, alike=False, inferred=True)

    def finish(self) -> Iterator[Found]:
        """The step that the bar was drawn at last."""
        waits, self._waits = self._waits, None
        if waits:
            yield waits

    def _count_on(self, drawn: Drawing, bar: Drawing) -> None:
        if bar.epoch < drawn.epoch:  # another run
            self._before = 0
        elif bar.epoch > drawn.epoch or (self._restarts and bar.n < drawn.n):
            self._before += drawn.total if bar.epoch else drawn.n
