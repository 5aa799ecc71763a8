"""The numbering of a record's steps: the number of its first step, its stride, and the steps that are missing.

Programs name a checkpoint by the last step in it, or by the next one; a step of 0 may stand for an unknown one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low

from seatrial.metrics.record import Ranges, Record

REGULAR_GAPS = 3  # between the steps of a log, for it to be one that leaves steps out by intention
FEW_GAPS, OF_MANY = 2, 10  # fewer gaps, if there are no others, and each is of so many steps


def counts_from(record: Record) -> int:
    """0 as MaxText and Seatrial count, or 1 as Megatron does: by the reader of the log, or else by the first step."""
    if record.from_own_trainer:
        return 0
    first = record.steps.numbers[:1]
    known = record.facts.get("counted_from")
    return min([known, *first]) if known in (0, 1) else int(first == [1])


def lines_apart(steps: Sequence[int]) -> int:
    """The number of steps that a line of the log stands for: the usual gap between two lines."""
    gaps = [after - before for before, after in pairwise(steps) if after > before]
    return median_low(gaps) if gaps else 1


def stride_of(record: Record) -> int:
    """Every how many steps the record has one: another trainer's log may report every n-th, if it does so regularly."""
    steps = record.steps.numbers
    if record.from_own_trainer or not steps:
        return 1
    if isinstance(told := record.facts.get("stride"), int):
        return told
    if _all_are_there(steps):
        return 1
    gaps = _gaps(steps, counts_from(record))
    stride = median_low(gaps)
    # The last line, of the end of the run, may come sooner.
    but_for_last = len(gaps) >= REGULAR_GAPS and {*gaps[:-1]} == {stride} and gaps[-1] < stride
    are_few = len(gaps) == FEW_GAPS and {*gaps} == {stride} and stride >= OF_MANY
    return stride if gaps.count(stride) >= REGULAR_GAPS or but_for_last or are_few else 1


def _gaps(steps: Sequence[int], counted_from: int) -> Sequence[int]:
    """The gaps between the lines of a log; that before the first line is one of them, if it is as long as the others.

    Some programs print their first steps beside every n-th one: torchtitan step 1, Parameter Golf 1 to 10.
    """
    if counted_from == 1:
        regular = [step for n, step in enumerate(steps, 1) if step != n]
        gaps = [after - before for before, after in pairwise((0, *regular))]
        if gaps and median_low(gaps) == gaps[0]:
            return gaps
    return [after - before for before, after in pairwise(steps)]


def begins_late(first: int, counted_from: int, stride: int) -> bool:
    """True if steps came before the first one of a record, which are not in it."""
    return first > (stride if stride > 1 else counted_from)


def missing_steps(record: Record, counted_from: int, restored: Sequence[int]) -> Ranges:
    """The steps without a record, up to the last one that has one; what came before a restored checkpoint is no gap.

    A checkpoint of a later step was restored later, and says nothing of the beginning.
    """
    steps = record.steps.numbers
    if not steps:
        return ()
    first, stride = steps[0], stride_of(record)
    if any(step <= first for step in restored):
        known = _checkpoint_before(first, restored)
        begin = first if known is None else known + 1
        is_late = first > begin + stride
    else:
        begin = counted_from
        is_late = begins_late(first, begin, stride)
    head = ((begin, first - 1),) if is_late else ()
    if _all_are_there(steps):
        return head
    return head + tuple(
        (before + stride, max(before + stride, after - stride))
        for before, after in pairwise(steps)
        if after - before > stride
    )


def resumed_after(record: Record, restored: Sequence[int]) -> int | None:
    """The last step before a record that begins with a checkpoint; None where it does not, or begins at its start."""
    steps = record.steps.numbers
    first = steps[0] if steps else 0
    known = _checkpoint_before(first, restored)
    if known is not None or not {0, first} & {*restored} or not first:
        return known
    return first - 1 if first > lines_apart(steps) else None


def _checkpoint_before(first: int, restored: Sequence[int]) -> int | None:
    """The step of the last checkpoint that is known to come before the first step of a record."""
    return max((step for step in restored if 0 < step < first), default=None)


def _all_are_there(steps: Sequence[int]) -> bool:
    """True of a record without gaps, as almost every one is."""
    return steps[-1] - steps[0] == len(steps) - 1
