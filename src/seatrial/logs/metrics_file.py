"""Metrics files → events: one JSON object per line, a CSV table, Hugging Face's `trainer_state.json`, our own events.

Such a file is recognised by its beginning. Its rows may say little each (a table of Lightning has one for the training
and one for the validation of a step): rows in a row that have the same step are one.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

from seatrial import events
from seatrial.events import Event
from seatrial.logs.families import transformers
from seatrial.logs.grammar import END, EVAL, FACTS, Family
from seatrial.logs.metric_keys import (
    EVAL_LOSS,
    FIELDS,
    SPEEDS,
    STEP,
    TOTAL,
    Row,
    commas_in,
    first,
    number,
    plain,
    time_of,
    values_of,
)
from seatrial.logs.metric_rows import of_whole_runs, without_gaps
from seatrial.logs.numbers import CUT, quantity
from seatrial.logs.process_log import ProcessLog

NAME = "metrics"
FAMILY = Family(name=NAME, counted_from=1)
HEAD = 50  # lines, one of which has to be of a step
LONGEST_STATE = 1 << 28  # characters of a trainer_state.json
_DELIMITERS = (",", "\t", ";")
_END_KEY = "train_runtime"  # of the row with which Hugging Face's Trainer ends a run
_FACTORY_KEY = "current_steps"  # of LLaMA-Factory's rows, which repeats that row without what it says

Kind = Literal["rows", "table", "state", "events"]


@dataclass(frozen=True)
class Spelling:
    """Key of a row → key of the table `metric_keys`, for the step and its figures; {} where these are the same."""

    renamed: Mapping[str, str]
    family: Family = FAMILY

    def read(self, row: Row) -> dict[str, Any]:
        """The row by the keys of the table."""
        found: dict[str, Any] = {}
        for key, value in row.items():
            if value is not None and value != "":
                found.setdefault(self.renamed.get(key) or plain(key), value)
        return found


KNOWN = Spelling({})


def kind_of(head: Sequence[str]) -> Kind | None:
    """The kind of file that begins with these lines; None for a text."""
    lines = [line.strip().removeprefix("\ufeff") for line in head if line.strip()]
    if not lines:
        return None
    if lines[0].startswith("{"):
        rows = list(_objects(lines))
        if rows and _object(lines[0]) is not None:
            if "log_history" in rows[0]:
                return "state"
            return "events" if "v" in rows[0] and rows[0].get("kind") in list(events.KINDS) else "rows"
        return "state" if any('"log_history"' in line for line in lines) else None
    cells = _cells(lines[0])
    # Data frames write the number of a row first, below an empty name.
    names = cells[1:] if len(cells) > 2 and not cells[0].strip() else cells
    named = len(names) > 1 and all(name.strip() and number(name) is None for name in names)
    return "table" if named and len({len(_cells(line, _delimiter(lines[0]))) for line in lines[:2]}) == 1 else None


def has_known_keys(rows: Iterable[Row]) -> bool:
    """True if these rows say by keys of the table which step they are of, and anything of it."""
    keys = {plain(key) for row in rows for key in row}
    return not keys.isdisjoint(STEP) and not keys.isdisjoint((*EVAL_LOSS, *(key for key, _ in FIELDS)))


def header_of(head: Sequence[str]) -> list[str]:
    """The names of the columns of a table that begins with these lines."""
    return _cells(next((line.removeprefix("\ufeff") for line in head if line.strip()), ""))


def rows_in(kind: Kind, lines: Iterable[str]) -> Iterator[Row]:
    """The rows of a file of one object per line, or of a table; those that were cut or are none are left out."""
    return _objects(lines) if kind == "rows" else _table(lines)


def read_rows(rows: Iterable[Row], *, process: int, source: str, spelling: Spelling = KNOWN) -> Iterator[Event]:
    """The events of rows, as they come."""
    log = ProcessLog(process, source, "", None, {})
    for row in _by_step(without_gaps(of_whole_runs(map(spelling.read, rows)))):
        yield from _read_end(log, row) if _END_KEY in row else _read_row(log, spelling.family, row)
    yield from log.finish()


def read_own_events(lines: Iterable[str]) -> Iterator[Event]:
    """The events that Seatrial itself has written; a line that was cut is left out."""
    for line in lines:
        try:
            yield events.loads(line)
        except ValueError:
            continue


def read_state(text: str, *, process: int, source: str) -> Iterator[Event] | None:
    """The events of a `trainer_state.json`; None for another text."""
    state = _object(text)
    history = state.get("log_history") if state else None
    if state is None or not isinstance(history, list):
        return None
    return _read_state(state, [row for row in history if isinstance(row, dict)], process=process, source=source)


def _read_state(state: Row, history: Sequence[Row], *, process: int, source: str) -> Iterator[Event]:
    """One that was written at the end has the last step of the run; one of a checkpoint does not say how it ended."""
    log = ProcessLog(process, source, "", None, {})
    planned, done = number(state.get("max_steps")), number(state.get("global_step"))
    if planned is not None and 0 < planned < 1e15:
        log.note(FACTS, {"planned_steps": str(int(planned))}, "", None)
    ended = False
    for row in _by_step(map(KNOWN.read, history)):
        ended = _END_KEY in row
        yield from _read_end(log, row) if ended else _read_row(log, transformers.FAMILY, row)
    if not ended and planned and done == planned:
        yield from log.note(END, {}, f"global_step {done:.0f} of max_steps {planned:.0f}", None)
    yield from log.finish()


def _by_step(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows, those of one step as one, but for the last of a run; rows that are of no step are left out."""
    held: dict[str, Any] = {}
    at: float | None = None
    for row in rows:
        step = first(row, STEP)
        ends = _END_KEY in row or _ends_a_factory(row, step)
        if held and (step != at or ends):
            yield held
            held = {}
        if ends:
            yield row
        elif step is not None:
            broken = {key: held[key] for key in held.keys() & row.keys() if _is_broken(held[key])}
            held, at = {**held, **row, **broken}, step
    if held:
        yield held


def _ends_a_factory(row: Row, step: float | None) -> bool:
    """True of the row with which LLaMA-Factory repeats the last step, after its loss and its evaluation."""
    if _FACTORY_KEY not in row or step is None or step != first(row, TOTAL):
        return False
    return row.keys().isdisjoint(EVAL_LOSS) and "loss" not in values_of(row)


def _is_broken(value: Any) -> bool:
    found = number(value)
    return found is not None and not math.isfinite(found)


def _read_end(log: ProcessLog, row: Row) -> Iterator[Event]:
    totals = {name: str(row[key]) for key, name in transformers.TOTALS.items() if key in row}
    if step := first(row, STEP):
        totals |= transformers.planned_by(totals, [int(step)])
    yield from log.note(END, totals, json.dumps(row), None)


def _read_row(log: ProcessLog, family: Family, row: Row) -> Iterator[Event]:
    step = first(row, STEP)
    if step is None or not (0 <= step < 1e15 and step == int(step)):
        return
    values = values_of(row)
    if transformers.REWARD in row:
        log.note(FACTS, transformers.objective_of(row), "", None)
    if "loss" in values or any(name in values for name in SPEEDS):
        total = first(row, TOTAL) or quantity(str(row.get("global_step/max_steps", "")), 1)
        yield from log.step(
            family,
            log.fields_of({**values, "step": int(step)}),
            int(total) if total is not None and step <= total < 1e15 else None,
            time_of(row),
        )
    validated = first(row, EVAL_LOSS, commas_in(row))
    if validated is not None:
        yield from log.note(EVAL, {"step": str(int(step)), "loss": repr(validated)}, "", None)
    elif _ends_a_factory(row, step):
        yield from log.note(END, {}, json.dumps(row), None)


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    return (_flat(found) for line in lines if line.lstrip()[:1] == "{" and (found := _object(line)) is not None)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """`{"train": {"loss": 2.5}}` as `{"train/loss": 2.5}`."""
    if not any(isinstance(value, dict) for value in row.values()):
        return row
    inner = (
        (f"{key}/{name}", each) for key, value in row.items() if isinstance(value, dict) for name, each in value.items()
    )
    return {**{key: value for key, value in row.items() if not isinstance(value, dict)}, **dict(inner)}


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)


def _cells(line: str, delimiter: str | None = None) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter or _delimiter(line)), [])
    except csv.Error:
        return []


def _table(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The rows below the first line; a number with which the file ends may have been cut, and is left out."""
    rest = iter(line for line in lines if line.strip())
    header = next(rest, "").removeprefix("\ufeff")
    delimiter, names = _delimiter(header), _cells(header)
    for line in rest:
        cells = _cells(line, delimiter)
        if len(cells) == len(names):
            yield {
                name: cell for name, cell in zip(names, cells, strict=True) if name.strip() and not cell.endswith(CUT)
            }


def peek(blocks: Iterator[list[str]]) -> tuple[list[str], Iterator[list[str]]]:
    """The first lines, and all blocks with them; of a text that grows, only as many as there have to be."""
    taken: list[list[str]] = []
    head: list[str] = []
    for block in islice(blocks, HEAD):
        taken.append(block)
        head += block
        told = next((line.lstrip() for line in head if line.strip()), "")
        if told and (not told.startswith("{") or len(head) >= HEAD):
            break
    return head[:HEAD], chain(taken, blocks)
