"""The rows of metrics files as those of a run: steps that begin again with each epoch, and cells without a value."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from typing import Any

from seatrial.logs.epoch_count import EpochCount
from seatrial.logs.metric_keys import EPOCH, EVAL_LOSS, LOSS, STEP, TOTAL, first, number

MOST_HELD = 20_000  # rows of a first epoch

_Row = dict[str, Any]


def of_whole_runs(rows: Iterable[_Row]) -> Iterator[_Row]:
    """The rows with the steps of the run, where those of the file begin again with each epoch.

    A total beside such a step may be the epoch's, which only the next epoch shows: rows with one are held until then,
    and come without it. A number of epochs with a fraction is a share of the data, and stands beside a step of the run.
    """
    count, rows = EpochCount(), iter(rows)
    held: list[_Row] = []
    holds, total_is_of_epoch = True, False
    for row in rows:
        epoch = first(row, EPOCH)
        if epoch is None and not count.num_epochs:
            yield row
            continue
        total, before = first(row, TOTAL), count.before
        if epoch is not None and not epoch.is_integer():
            yield from (*held, row)
            yield from rows
            return
        fits = total is not None and count.fits(total)
        row = _of_the_run(row, epoch, int(total) if total is not None and fits else None, count)
        total_is_of_epoch |= fits and count.before > before
        holds &= count.num_epochs < 2 and len(held) < MOST_HELD
        if holds and (held or total is not None):
            held.append(row)
            continue
        for each in (*held, row):
            yield _without(each, TOTAL) if total_is_of_epoch else each
        held = []
    yield from held


def _of_the_run(row: _Row, epoch: float | None, total: int | None, count: EpochCount) -> _Row:
    """The row with the step of the run; only one with a loss of the training says where an epoch begins."""
    step = first(row, STEP)
    if step is None or not (0 <= step < 1e15 and step.is_integer()):
        return row
    if epoch is None or row.keys().isdisjoint(LOSS):
        of_run = count.before + int(step)
    else:
        of_run = count.step_of_run(int(epoch), int(step), total)
    return row if of_run == step else {**row, STEP[0]: of_run}


def without_gaps(rows: Iterable[_Row]) -> Iterator[_Row]:
    """The rows without each NaN that stands for no value, as in what is exported from a data frame.

    There, every row of a step has a NaN for the evaluation until the first one, and the next one has a NaN again. Else
    NaN is what an evaluation gave.
    """
    unclear: _Row = {}  # the first evaluation whose NaN may be either
    has_gaps: bool | None = None  # None: not known yet
    has_one = False  # an evaluation with a number
    rows = iter(rows)
    for row in rows:
        loss, evaluated = first(row, LOSS), first(row, EVAL_LOSS)
        is_one = evaluated is not None and not math.isnan(evaluated)
        if has_gaps is None and (is_one or loss is not None):
            has_gaps = _tells_of_gaps(evaluated, has_one=has_one, is_unclear=bool(unclear))
        if has_gaps is False:
            yield from (unclear, row) if unclear else (row,)
            yield from rows
            return
        has_one |= is_one
        if is_one == (loss is not None and not math.isnan(loss)):
            yield row
            continue
        if has_gaps is None and not is_one:
            unclear = unclear or {key: row[key] for key in (*STEP, *EVAL_LOSS) if key in row}
        yield {key: value for key, value in row.items() if not (key in (*LOSS, *EVAL_LOSS) and _is_nan(value))}
    if unclear and not has_one:
        yield unclear


def _tells_of_gaps(evaluated: float | None, *, has_one: bool, is_unclear: bool) -> bool | None:
    """True if a row with this evaluation loss shows that NaN stands for no value; None if it does not show either."""
    if evaluated is None:
        return False
    if math.isnan(evaluated):
        return True if has_one else None
    return None if is_unclear and not has_one else False


def _is_nan(value: Any) -> bool:
    found = number(value)
    return found is not None and math.isnan(found)


def _without(row: _Row, keys: Container[str]) -> _Row:
    return {key: value for key, value in row.items() if key not in keys}
