"""Numbers the steps of logs in which only the lines of steps can be counted, by the epochs and the end of the run.

Hugging Face's Trainer prints a line every `logging_steps` steps, with the epoch but no step, and at the end how long
the run took and how many steps it did in a second. Both are rounded; only where one number of steps fits is it taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from seatrial.events import Eval, Event, RunEnded, RunStarted, Step
from seatrial.recording import Steps

COUNTED = "lines_counted"  # of `RunStarted.facts`
EPOCH = "epoch"  # of `Step.reported`, in such logs
FEWEST = 3  # lines
ROUNDED = 5e-4  # relative: version 5 prints four digits
FIRST_IS_EARLY = 0.75  # of the distance between lines: it is of step 1 (`logging_first_step`)


def numbered(events: Iterable[Event | Steps]) -> Iterator[Event | Steps]:
    """The events, those of an attempt whose lines were counted with their true steps, where its end tells these.

    They are held back until then; all others pass as they come.
    """
    held: list[Event] = []
    for event in events:
        if not isinstance(event, Event):
            if not held:
                yield event
            held += event.events() if held else ()
        elif isinstance(event, RunStarted) and event.facts.get(COUNTED):
            yield from _numbered(held)
            held = [event]
        elif not held:
            yield event
        else:
            held.append(event)
            if isinstance(event, RunEnded):
                yield from _numbered(held)
                held = []
    yield from _numbered(held)


def _numbered(held: Sequence[Event]) -> Iterator[Event]:
    if not held:
        return
    process, end = held[0].process, held[-1]
    own = [event for event in held if isinstance(event, Step) and event.process == process]
    totals = (end.totals if isinstance(end, RunEnded) else None) or {}
    found = step_numbers([step.reported.get(EPOCH) for step in own], totals)
    number = dict(zip((step.step for step in own), found or (), strict=False))
    for event in held:
        if event.process == process and isinstance(event, RunStarted) and found:
            facts = {name: value for name, value in event.facts.items() if name != COUNTED}
            yield replace(event, facts=facts)
        elif event.process == process and isinstance(event, (Step, Eval)):
            yield _moved(event, number)
        else:
            yield event


def _moved(event: Step | Eval, number: Mapping[int, int]) -> Event:
    step = number.get(event.step, event.step)
    if isinstance(event, Eval):
        return replace(event, step=step)
    return replace(event, step=step, reported={name: value for name, value in event.reported.items() if name != EPOCH})


def step_numbers(epochs: Sequence[float | None], totals: Mapping[str, float]) -> list[int] | None:
    """The step of each line, by its epoch and the `totals` of the run; None where more than one number fits, or none.

    All lines are a number of steps apart, but for a first one that may be of step 1.
    """
    known = [epoch for epoch in epochs if epoch is not None]
    seconds, rate, whole = (totals.get(name, 0.0) for name in ("run_seconds", "steps_per_second", "epochs"))
    if len(known) < max(FEWEST, len(epochs)) or min(seconds, rate, whole) <= 0 or known != sorted(known):
        return None
    early = known[0] < FIRST_IS_EARLY * (known[-1] - known[1]) / (len(known) - 2)
    regular = known[1:] if early else known
    apart = (regular[-1] - regular[0]) / (len(regular) - 1)
    per_epoch = seconds * rate / whole
    stride = round(apart * per_epoch)
    rounded = sum(_rounding([total]) / total for total in (seconds, rate))
    of_epoch = _rounding(regular[len(regular) // 2 :])
    rounded += of_epoch / whole + (2 * of_epoch / (regular[-1] - regular[0]) if apart > 0 else 1.0)
    # Another number would fit as well, or this one does not.
    if stride < 1 or rounded * stride >= 0.5 or abs(apart * per_epoch - stride) > rounded * stride + 1e-9:
        return None
    steps = [max(1, round(epoch / apart)) * stride for epoch in regular]
    steps = [1, *steps] if early else steps
    return steps if all(before < after for before, after in pairwise(steps)) else None


def _rounding(values: Sequence[float]) -> float:
    """The most that any of these may be off: they have the decimals that one of them shows, and four digits."""
    decimals = max(len(text.partition(".")[2]) if "e" not in (text := repr(value)) else 0 for value in values)
    return max(ROUNDED * max(values), 0.5 * 10.0**-decimals)
