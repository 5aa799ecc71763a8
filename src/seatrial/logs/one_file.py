"""Reads one file of a run: a log, a metrics file, or, where nobody knows its spelling, by a guess."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from seatrial.errors import InputError
from seatrial.events import Event, RunStarted, Step
from seatrial.logs import metrics_file
from seatrial.logs.clock import dated, last_written
from seatrial.logs.families import FAMILIES
from seatrial.logs.grammar import Family, of_a_launcher, without_steps
from seatrial.logs.guess import Guess, guess_from_lines, guess_from_rows
from seatrial.logs.lines import is_read_once, read_blocks, read_whole
from seatrial.logs.reader import read_text
from seatrial.logs.time_limit import limited
from seatrial.recording import Steps

MOST_KEPT = 1 << 26  # characters of what can be read but once, to read it once more by a guess

_Read = Callable[..., Iterator[Event | Steps]]  # `read_text`, of one log


@dataclass(frozen=True, kw_only=True)
class Spellings:
    """The spellings to try for a file: a log of `families`, a metrics file, and, if it is none of these, a guessed one.

    `confirmed`: whoever asks knows that a guess will do, so that no family is tried before. `slow` is the error for a
    pattern of the user's own that takes too long; None where there is none. `earlier` are the older pieces of logs that
    were rotated, the oldest first, which are read before them. With `in_columns`, steps that are read at once stay so.
    """

    families: tuple[Family, ...]
    metrics_files: bool = True
    guessed: bool = True
    confirmed: bool = False
    slow: InputError | None = None
    in_columns: bool = False
    earlier: Mapping[Path, tuple[Path, ...]] = field(default_factory=dict)

    def blocks(self, path: Path) -> Iterator[list[str]]:
        """The lines of a log, as in `read_blocks`, those of its older pieces first. Raises OSError."""
        return chain.from_iterable(map(read_blocks, (*self.earlier.get(path, ()), path)))


def read_file(
    path: Path, spellings: Spellings, *, process: int, written: float | None = None
) -> Iterator[Event | Steps]:
    """The events of one file, last written to at `written` (None: at the file's own time). Raises OSError.

    Raises InputError for a pattern of the user's own that takes too long.
    """
    return dated(_of_file(path, spellings, process), last_written([path]) if written is None else written)


def is_of_steps(path: Path) -> bool:
    """True if a file is one of metrics whose rows have a step, by its first lines. Raises OSError."""
    head, _ = metrics_file.peek(read_blocks(path))
    kind = metrics_file.kind_of(head)
    if kind is None or kind in ("state", "events"):
        return kind is not None
    return _keys_are_known(kind, head) or guess_from_rows(metrics_file.rows_in(kind, head)) is not None


def source_name(path: Path) -> str:
    """The name of a file, as events give it: any that is no UTF-8 could not be written to a file of events."""
    return str(path).encode("utf-8", "replace").decode()


def _of_file(path: Path, spellings: Spellings, process: int) -> Iterator[Event | Steps]:
    head, blocks = metrics_file.peek(spellings.blocks(path))
    kind = metrics_file.kind_of(head) if spellings.metrics_files else None
    source = source_name(path)
    if kind == "events":
        return metrics_file.read_own_events(chain.from_iterable(blocks))
    if kind == "state":
        text = _whole(path, blocks)
        found = metrics_file.read_state(text, process=process, source=source)
        return found if found is not None else _of_text(path, iter([text.split("\n")]), spellings, process)
    if kind is not None:
        if _keys_are_known(kind, head):
            rows = metrics_file.rows_in(kind, chain.from_iterable(blocks))
            return metrics_file.read_rows(rows, process=process, source=source)
        # What is read but once is kept for a guess only if its first rows allow one.
        if spellings.guessed and (not is_read_once(path) or guess_from_rows(metrics_file.rows_in(kind, head))):
            kept = _kept(path, blocks, spellings)
            guess = guess_from_rows(metrics_file.rows_in(kind, chain.from_iterable(kept)))
            blocks = iter(kept.once_more())
            if guess:
                rows = metrics_file.rows_in(kind, chain.from_iterable(blocks))
                spelling = metrics_file.Spelling(guess.renamed, guess.family)
                events = metrics_file.read_rows(rows, process=process, source=source, spelling=spelling)
                return _marked(events, guess, confirmed=spellings.confirmed)
    return _of_text(path, blocks, spellings, process)


def _keys_are_known(kind: metrics_file.Kind, head: Sequence[str]) -> bool:
    """True if the first rows of a file, or the head of its table, have keys that we know."""
    header = [dict.fromkeys(metrics_file.header_of(head), "")] if kind == "table" else []
    return any(map(metrics_file.has_known_keys, (metrics_file.rows_in(kind, head), header)))


def _whole(path: Path, blocks: Iterable[list[str]]) -> str:
    """The text of a document of JSON, whose lines may be of any length; lines are shortened only elsewhere."""
    if is_read_once(path):
        return "\n".join(chain.from_iterable(blocks))
    return read_whole(path, metrics_file.LONGEST_STATE)


def _of_text(path: Path, blocks: Iterator[list[str]], spellings: Spellings, process: int) -> Iterator[Event | Steps]:
    read = partial(read_text, process=process, source=source_name(path), in_columns=spellings.in_columns)
    if spellings.slow is not None:
        return read(blocks, spellings.families, within=limited(spellings.slow))
    return _by_turns(path, blocks, spellings, read)


def _by_turns(path: Path, blocks: Iterator[list[str]], spellings: Spellings, read: _Read) -> Iterator[Event | Steps]:
    """The events by the families; where they find no step, by those that count only then, and at last by a guess.

    A framework whose steps have no loss may stand beside a trainer of somebody's own, whose lines have one.
    """
    kept = _kept(path, blocks, spellings)
    lines: Iterable[list[str]] = kept
    held: list[Event | Steps] = []
    for families in _turns(() if spellings.confirmed else spellings.families):
        events = read(lines, families)
        held, found = _up_to_a_loss(events, {family.name for family in families if family.fallback})
        if found:
            kept.forget()
            yield from held
            yield from events
            return
        lines = kept.once_more()
    guess = _guess(kept, held) if spellings.guessed else None
    if guess is None:
        yield from held
        return
    others = [*map(of_a_launcher, spellings.families)]
    if spellings.confirmed:  # a launcher's word counts for any program
        others = [replace(of_a_launcher(family), notes=()) for family in FAMILIES.values() if family.launcher_reader]
    events = read(kept.once_more(), (*others, guess.family))
    yield from _marked(events, guess, confirmed=spellings.confirmed)


def _up_to_a_loss(events: Iterator[Event | Steps], fallbacks: Container[str]) -> tuple[list[Event | Steps], bool]:
    """The events up to the first step that counts, and whether there is one; one of a fallback has to have a loss."""
    held: list[Event | Steps] = []
    is_own = False
    for event in events:
        held.append(event)
        if isinstance(event, RunStarted):
            is_own = event.facts.get("family") not in fallbacks
        if isinstance(event, Step) and (is_own or event.loss is not None):
            return held, True
    return held, False


def _guess(kept: _Kept, held: Sequence[Event | Steps]) -> Guess | None:
    """The spelling of a log in which no step counts; None where its means are known, or nothing in it is regular."""
    if any(isinstance(event, RunStarted) and "summary" in event.facts for event in held):
        return None
    alone = not any(isinstance(event, (Step, Steps)) for event in held)
    return guess_from_lines((line for block in kept.once_more() for line in block), alone=alone)


def _turns(families: tuple[Family, ...]) -> Iterator[tuple[Family, ...]]:
    """The families to try, one set after the other: without the steps of those that are a fallback, then with them."""
    if any(family.fallback for family in families) and not all(family.fallback for family in families):
        yield tuple(without_steps(family) if family.fallback else family for family in families)
    yield families


def _kept(path: Path, blocks: Iterator[list[str]], spellings: Spellings) -> _Kept:
    return _Kept(blocks, None if is_read_once(path) else lambda: spellings.blocks(path))


class _Kept:
    """The blocks of a file, which can be read once more: those of what is read but once are kept, up to a limit."""

    def __init__(self, blocks: Iterator[list[str]], again: Callable[[], Iterator[list[str]]] | None) -> None:
        self._blocks = blocks
        self._room = 0 if again else MOST_KEPT
        self._again = again
        self._kept: list[list[str]] = []

    def __iter__(self) -> Iterator[list[str]]:
        for block in self._blocks:
            if self._room > 0:
                self._kept.append(block)
                self._room -= sum(map(len, block))
            yield block

    def forget(self) -> None:
        self._kept, self._room = [], 0

    def once_more(self) -> Iterable[list[str]]:
        return self._again() if self._again else self._kept


def _marked(events: Iterable[Event | Steps], guess: Guess, *, confirmed: bool) -> Iterator[Event | Steps]:
    """The events, whose beginning says that, and how, the spelling was guessed."""
    marks = {"guessed": guess.told, **({"confirmed": True} if confirmed else {})}
    for event in events:
        is_guessed = isinstance(event, RunStarted) and event.facts.get("family") == guess.family.name
        yield replace(event, facts={**event.facts, **marks}) if is_guessed and isinstance(event, RunStarted) else event
