"""The tables of families and of faults that may match a line: those with a word in its skeleton."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from seatrial.logs.faults import FaultScanner, skeleton_of
from seatrial.logs.grammar import Family, Note

MAX_SKELETONS, LONGEST_SKELETON = 20_000, 4000  # of lines; characters of one

_skeleton_of_word = lru_cache(maxsize=1 << 12)(skeleton_of)  # of the tables, once for all files


class LineTables(NamedTuple):
    """The tables that may match a line; for most lines of any log, there are none."""

    families: tuple[Family, ...] = ()
    notes: tuple[Note, ...] = ()
    custom: tuple[Family, ...] = ()
    faults: bool = False


NO_TABLE, OF_FAULTS = LineTables(), LineTables(faults=True)


class Tables:
    """Chooses among the tables of some families by the skeleton of a line, once for the logs of all ranks."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families
        self._is_innocent = FaultScanner().is_innocent
        self.family_of = {note: family.name for family in families for note in family.notes}
        self.known: dict[bytes, LineTables] = {}

    def of(self, skeleton: bytes) -> LineTables:
        """The tables that have a word in a line of this skeleton."""
        tables = self.known.get(skeleton)
        if tables is None:
            tables = self._look_up(skeleton)
            if len(skeleton) < LONGEST_SKELETON:
                if len(self.known) > MAX_SKELETONS:
                    self.known.clear()
                self.known[skeleton] = tables
        return tables

    def _look_up(self, skeleton: bytes) -> LineTables:
        """The tables with a word in this skeleton."""
        tables = LineTables(
            families=tuple(
                f for f in self._families if f.anchors and all(_skeleton_of_word(w) in skeleton for w in f.anchors)
            ),
            notes=tuple(note for note in self.family_of if _skeleton_of_word(note.literal) in skeleton),
            custom=tuple(
                f
                for f in self._families
                if f.custom_reader and any(_skeleton_of_word(word) in skeleton for word in f.custom_words)
            ),
            faults=not self._is_innocent(skeleton),
        )
        return next((known for known in (NO_TABLE, OF_FAULTS) if tables == known), tables)


tables_of = lru_cache(maxsize=16)(Tables)
