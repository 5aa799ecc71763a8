"""The events of a run in the order of time, the steps in columns, so that those of thousands of ranks fit in memory."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from seatrial.events import Event, Step, read_from, trusted
from seatrial.parallel import map_files
from seatrial.runs.files import read_lines

Column = NDArray[Any]  # of float64, of int64, or of the objects themselves where these would lose anything
Numbers = NDArray[np.float64]
Places = NDArray[np.int64]

MOST_READ = 1024  # lines of events that are read at a time
AT_ONCE = 64  # steps that are made into events at a time, where none of them is kept
_FIELDS = (
    "wall_time", "monotonic_time", "step", "seconds", "tokens", "loss", "grad_norm", "learning_rate", "data_seconds",
    "phase",
)  # fmt: skip
_LARGEST = 1 << 62


class Steps(Sequence[Step]):
    """Steps of one process, in their order; `places` says where in the recording each of them stands.

    A field, or a name in `Step.reported`, that none of them has gets no column. Iterating keeps the events that it
    makes; `events` and the columns do not.
    """

    def __init__(
        self, process: int, places: Places, fields: Mapping[str, Column], reported: Mapping[str, Column]
    ) -> None:
        self.process = process
        self.places = places
        self._fields = fields
        self._reported = reported
        self._made: list[Step] | None = None

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Steps:
        """The columns of the steps of a process, at least one."""
        rows = [vars(step) for step in steps]
        fields = _columns({name: [row[name] for row in rows] for name in _FIELDS})
        if np.array_equal(fields["wall_time"], fields["monotonic_time"]):
            fields["monotonic_time"] = fields["wall_time"]
        said = [row["reported"] for row in rows]
        names = dict.fromkeys(chain.from_iterable(said))
        reported = _columns({name: [row.get(name) for row in said] for name in names})
        return cls(steps[0].process, np.arange(len(rows)), fields, reported)

    @classmethod
    def of_columns(
        cls, process: int, values: Mapping[str, Sequence[Any] | Column], reported: Iterable[str] = ()
    ) -> Steps:
        """The steps of a process by the values of each field that is known, and of the names in `reported`."""
        fields, others = (
            _columns({name: values[name] for name in names if name in values}) for names in (_FIELDS, reported)
        )
        return cls(process, np.arange(len(fields["step"])), fields, others)

    @classmethod
    def joined(cls, pieces: Iterable[Step | Steps]) -> Steps:
        """The columns of the steps of a process, of which some come one by one and others in columns already."""
        parts: list[Steps] = []
        for kind, some in groupby(pieces, type):
            alike: list[Any] = list(some)
            parts += [cls.of(alike)] if kind is Step else alike
        return cls.following(parts) if parts else NO_STEPS

    @classmethod
    def following(cls, parts: Sequence[Steps]) -> Steps:
        """The steps of one process from several parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        fields = _joined([part._fields for part in parts], list(map(len, parts)))
        reported = _joined([part._reported for part in parts], list(map(len, parts)))
        return cls(parts[0].process, np.concatenate([part.places for part in parts]), fields, reported)

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Step]:
        if self._made is None:
            self._made = list(self.events())
        return iter(self._made)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Steps: ...
    def __getitem__(self, index: int | slice) -> Step | Steps:
        if isinstance(index, slice):
            return self.some(index)
        place = range(len(self))[index]
        return self._made[place] if self._made else next(self.some(slice(place, place + 1)).events())

    def some(self, which: slice | NDArray[Any]) -> Steps:
        """A part of the steps: a slice, or those that an array names."""
        fields = {name: column[which] for name, column in self._fields.items()}
        reported = {name: column[which] for name, column in self._reported.items()}
        return Steps(self.process, self.places[which], fields, reported)

    def events(self) -> Iterator[Step]:
        """The steps as events, one after the other."""
        blank: dict[str, Any] = {"process": self.process, **dict.fromkeys(_FIELDS[:-1]), "reported": {}, "phase": ""}
        some_lack = any(column.dtype == object for column in self._reported.values())
        for start in range(0, len(self), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            rows = zip(*(column[part].tolist() for column in self._fields.values()), strict=True)
            said = [column[part].tolist() for column in self._reported.values()]
            logged = zip(*said, strict=True) if said else repeat(())
            for row, figures in zip(rows, logged, strict=False):
                fields, reported = blank.copy(), dict(zip(self._reported, figures, strict=True))
                if some_lack:
                    reported = {name: value for name, value in reported.items() if value is not None}
                fields.update(zip(self._fields, row, strict=True))
                fields["reported"] = reported
                yield trusted(Step, fields)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the steps."""
        found: list[int] = self.number_column.tolist()
        return found

    @property
    def number_column(self) -> Column:
        """The numbers of the steps as they are kept, for many at once."""
        return self._fields["step"]

    def rise_after(self, step: int) -> bool:
        """True if the numbers of the steps, at least one, rise from this one on."""
        numbers = self.number_column
        return bool(numbers[0] > step and (numbers[1:] > numbers[:-1]).all())

    @property
    def names(self) -> tuple[str, ...]:
        """The names in `Step.reported` that some of the steps have."""
        return tuple(self._reported)

    @property
    def phases(self) -> Column:
        """The `phase` of each step."""
        return self._fields.get("phase", np.full(len(self), ""))

    def values(self, name: str) -> Numbers:
        """A field of each step; NaN also where it is not known, which `has` tells apart."""
        return self._values(self._fields.get(name))

    def has(self, name: str) -> NDArray[np.bool_]:
        """A mask of the steps that have a field."""
        return self._known(self._fields.get(name))

    def reported(self, name: str) -> Numbers:
        """A figure of `Step.reported` of each step; NaN also where there is none, which `reports` tells apart."""
        return self._values(self._reported.get(name))

    def reports(self, name: str) -> NDArray[np.bool_]:
        """A mask of the steps that report this figure."""
        return self._known(self._reported.get(name))

    def _values(self, column: Column | None) -> Numbers:
        if column is None:
            return np.full(len(self), np.nan)
        try:
            return column.astype(np.float64, copy=False)  # None becomes NaN
        except OverflowError:  # whole numbers of any length
            return np.array([np.nan if value is None else _as_float(value) for value in column])

    def _known(self, column: Column | None) -> NDArray[np.bool_]:
        if column is None or column.dtype != object:
            return np.full(len(self), column is not None)
        return np.array([value is not None for value in column], bool)

    def moved(self, shift: Callable[[Numbers], Numbers]) -> Steps:
        """The steps at other times; one without a time stays without."""
        wall = self.values("wall_time")
        return self.at_times(np.where(wall != 0, shift(wall), wall))

    def at_times(self, times: Numbers) -> Steps:
        """The steps at these times."""
        fields = {**self._fields, "wall_time": times, "monotonic_time": times}
        return Steps(self.process, self.places, fields, self._reported)

    def at(self, places: Places) -> Steps:
        """The same steps where they stand in another recording."""
        return Steps(self.process, places, self._fields, self._reported)


def median(values: Numbers) -> float:
    """`np.median`, but several times as fast for few values, as each of thousands of ranks has them."""
    ordered = np.sort(values)  # NaN comes last
    low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
    return math.nan if math.isnan(ordered[-1]) else (low + high) / 2


def shared(some: Column, others: Column) -> tuple[Places, Places]:
    """The places, in the one process and in the other, of the steps that both have, by their numbers."""
    if np.array_equal(some, others):  # as they nearly always are, which is found out in no time
        places = np.arange(len(some))
        return places, places
    _, here, there = np.intersect1d(some, others, assume_unique=True, return_indices=True)
    return here, there


def singly(events: Iterable[Event | Steps]) -> Iterator[Event]:
    """The events, those that come in columns one by one too."""
    for event in events:
        if isinstance(event, Event):
            yield event
        else:
            yield from event.events()


def _columns(values: Mapping[str, Sequence[Any] | Column]) -> dict[str, Column]:
    """The columns of those names of which anything is known."""
    found = {name: _column(each) for name, each in values.items()}
    return {name: column for name, column in found.items() if column is not None}


def _column(values: Sequence[Any] | Column) -> Column | None:
    if isinstance(values, np.ndarray):
        return values
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values)
    if kinds == {int} and max(map(abs, values)) < _LARGEST:
        return np.array(values)
    if not any(value is not None and value != "" for value in values):
        return None
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value > 0 or -1)


def _joined(parts: Sequence[Mapping[str, Column]], lengths: Sequence[int]) -> dict[str, Column]:
    """The columns of all parts, one part below the other."""
    found: dict[str, Column] = {}
    for name in dict.fromkeys(chain.from_iterable(parts)):
        unknown = "" if name == "phase" else None
        pieces = [
            part[name] if name in part else np.full(n, unknown, object) for part, n in zip(parts, lengths, strict=True)
        ]
        one_kind = len({piece.dtype for piece in pieces}) == 1
        found[name] = np.concatenate(pieces if one_kind else [piece.astype(object) for piece in pieces])
    return found


NO_STEPS = Steps(0, np.arange(0), {"step": np.arange(0)}, {})


class Recording(Sequence[Event]):
    """Events in an order: `others` are those that are no steps, and stand at `places`; the `steps` are by process.

    Iterates over all of them; what is about many steps asks for their columns.
    """

    def __init__(self, others: Sequence[Event], places: Places, steps: Mapping[int, Steps]) -> None:
        self.others = tuple(others)
        self.places = places
        self.steps = steps

    @classmethod
    def of(cls, events: Iterable[Event | Steps]) -> Recording:
        """These events, in their order; steps that come in columns stay so."""
        if isinstance(events, Recording):
            return events
        others: list[tuple[int, Event]] = []
        steps: dict[int, tuple[list[int], list[Step | Steps]]] = {}
        process, at, own = -1, list[int](), list[Step | Steps]()  # of the last step: most come one after the other
        place = 0
        for event in events:
            if isinstance(event, (Step, Steps)):
                if event.process != process or not own:
                    process = event.process
                    at, own = steps.setdefault(process, ([], []))
                own.append(event)
                first, place = place, place + (len(event) if isinstance(event, Steps) else 1)
                at += range(first, place)
            else:
                others.append((place, event))
                place += 1
        joined = {process: Steps.joined(own).at(np.array(at)) for process, (at, own) in steps.items()}
        return cls.placed_at(others, joined)

    @classmethod
    def placed_at(cls, others: Sequence[tuple[int, Event]], steps: Mapping[int, Steps]) -> Recording:
        """The events that are no steps, each with its place, and the steps."""
        return cls([event for _, event in others], np.array([place for place, _ in others], np.int64), steps)

    def __len__(self) -> int:
        return len(self.others) + sum(map(len, self.steps.values()))

    def __iter__(self) -> Iterator[Event]:
        steps = [zip(own.places.tolist(), own.events(), strict=True) for own in self.steps.values()]
        return (event for _, event in heapq.merge(self.placed, *steps, key=itemgetter(0)))

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        return list(self)[index]

    @property
    def placed(self) -> list[tuple[int, Event]]:
        """The others, each with its place."""
        return list(zip(self.places.tolist(), self.others, strict=True))

    @property
    def times(self) -> Numbers:
        """The wall time of each event, in the order of the events."""
        places = np.concatenate([self.places, *(own.places for own in self.steps.values())])
        others = np.array([event.wall_time for event in self.others], np.float64)
        times = np.concatenate([others, *(own.values("wall_time") for own in self.steps.values())])
        if len(places) and places.max() == len(places) - 1:  # none is left out, so that there is nothing to sort
            found = np.empty_like(times)
            found[places] = times
            return found
        return times[np.argsort(places)]

    @property
    def all_steps(self) -> Steps:
        """The steps of all processes, in their order, as if they were of one."""
        every = list(self.steps.values())
        return _by_place(every) if every else NO_STEPS

    def by_process(self) -> dict[int, Recording]:
        """The events of each process, at their places in this recording."""
        placed: dict[int, list[tuple[int, Event]]] = {process: [] for process in self.steps}
        for place, event in self.placed:
            placed.setdefault(event.process, []).append((place, event))
        return {
            process: Recording.placed_at(own, {process: self.steps[process]} if process in self.steps else {})
            for process, own in placed.items()
        }

    def changed(
        self, change: Callable[[int, Event], Event], moved: Callable[[Numbers], Numbers] | None = None
    ) -> Recording:
        """The events after a change of each that is no step, by its place; the steps may be moved in time."""
        others = [change(place, event) for place, event in self.placed]
        steps = {process: own.moved(moved) for process, own in self.steps.items()} if moved else self.steps
        return Recording(others, self.places, steps)


def merge(streams: Iterable[Iterable[Event]]) -> Recording:
    """All events of a run by wall time. The order within a stream stays, even where its clock was set back."""
    recordings = [Recording.of(stream) for stream in streams]
    times = [np.maximum.accumulate(recording.times) for recording in recordings if len(recording)]
    order = np.argsort(np.concatenate([np.zeros(0), *times]), kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    others: list[tuple[int, Event]] = []
    steps: dict[int, list[Steps]] = {}
    begin = 0
    for recording in recordings:
        own = places[begin : begin + len(recording)]
        begin += len(recording)
        others += zip(own[recording.places].tolist(), recording.others, strict=True)
        for process, each in recording.steps.items():
            steps.setdefault(process, []).append(each.at(own[each.places]))
    others.sort(key=itemgetter(0))
    return Recording.placed_at(others, {process: _by_place(parts) for process, parts in steps.items()})


def _by_place(parts: Sequence[Steps]) -> Steps:
    every = Steps.following(parts)
    return every if len(parts) == 1 else every.some(np.argsort(every.places))


def read_run(run_dir: Path) -> Recording:
    """Every `events-*.jsonl` of a run directory and of its earlier attempts, merged. Raises as `events.read` does."""
    found = [path for pattern in ("", "attempts/*/") for path in sorted(run_dir.glob(f"{pattern}events-*.jsonl"))]
    return merge(map_files(_read, [(path,) for path in found], found))


def _read(path: Path) -> Recording:
    return Recording.of(_read_from(read_lines(path)))


def _read_from(lines: Iterator[str]) -> Iterator[Event | Steps]:
    """`events.read`, of the lines of a file; many steps of one process are read at once."""
    while block := list(islice(lines, MOST_READ)):
        matches = list(map(_STEP_LINE.fullmatch, block))
        place = 0
        for process, some in groupby(match and match[1] for match in matches):
            part = slice(place, place + len(list(some)))
            steps = None if process is None else _columns_of([match.groups() for match in matches[part] if match])
            yield from read_from(block[part]) if steps is None else (steps,)
            place = part.stop


# How `events.dumps` writes a step: its process, and each of `_FIELDS` that is a finite number.
_LITERAL = r"(-?[0-9][0-9.e+-]*)"
_STEP_LINE = re.compile(
    r'\{"v": [0-9]+, "kind": "step", "process": ([0-9]+), '
    + ", ".join(rf'"{name}": {_LITERAL}' for name in _FIELDS[:3])
    + "".join(rf'(?:, "{name}": {_LITERAL})?' for name in _FIELDS[3:-1])
    + r', "reported": \{\}, "phase": ""\}\n'
)


def _columns_of(rows: Sequence[Sequence[str | None]]) -> Steps | None:
    """The steps of one process by the texts of their fields; None where one of them may be no number."""
    try:
        process, *columns = (_numbers(texts) for texts in zip(*rows, strict=True))
    except ValueError:
        return None
    values = dict(zip(_FIELDS, columns, strict=False))
    whole = {type(value) for name in ("step", "tokens") for value in values[name]} <= {int, type(None)}
    if not whole or min(values["step"]) < 0 or not all(map(math.isfinite, values["wall_time"])):
        return None
    return Steps.of_columns(process[0], values)


def _numbers(texts: Sequence[str | None]) -> list[Any]:
    """The values of JSON texts, None for None; the numbers are read as one list, which is faster."""
    found: list[Any] = from_json(f"[{','.join(filter(None, texts))}]")
    if len(found) == len(texts):
        return found
    values = iter(found)
    return [next(values) if text else None for text in texts]
