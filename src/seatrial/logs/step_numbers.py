"""Numbers the steps of logs in which only the lines of steps can be counted, by the epochs and the end of the run.

Hugging Face's Trainer prints a line every `logging_steps` steps, with the epoch but no step, and at the end how long
the run took and how many steps it did in a second: the planned ones, even where it stopped before. Both are rounded;
only where one number of steps fits is it taken. Where the lines came too late for their progress bar, that says how
many steps were done. A number of steps between lines fits if the epochs do, or if it leads to as many lines as there
are: so it is where gradients are accumulated and the last step of each epoch has fewer batches, or the epochs have too
few digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from seatrial.events import Eval, Event, RunEnded, RunStarted, Step
from seatrial.logs.numbers import quantity
from seatrial.logs.rounding import relative_rounding, rounding
from seatrial.recording import Steps

COUNTED, STRIDE = "lines_counted", "stride"  # of `RunStarted.facts`
EPOCH = "epoch"  # of `Step.reported`, in such logs
EPOCHS_ASKED = "planned_epochs"  # of `RunStarted.facts`
FEWEST = 3  # lines
MOST_STRIDES = 100  # that are tried: of more, several fit
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
    started, end = held[0], held[-1]
    assert isinstance(started, RunStarted)
    planned, asked = started.planned_steps, quantity(str(started.facts.get(EPOCHS_ASKED, "")))
    process = started.process
    own = [event for event in held if isinstance(event, Step) and event.process == process]
    epochs = [step.reported.get(EPOCH) for step in own]
    totals = (end.totals if isinstance(end, RunEnded) else None) or {}
    planned = int(totals.get("planned_steps", 0)) or planned
    found = step_numbers(epochs, totals, planned=planned, asked=asked)
    number = dict(zip((step.step for step in own), found or (), strict=False))
    for event in held:
        if event.process == process and isinstance(event, RunStarted) and found:
            facts = {name: value for name, value in event.facts.items() if name != COUNTED}
            facts[STRIDE] = found[-1] - found[-2]
            yield replace(event, facts=facts, planned_steps=planned or _planned(found, own, totals, asked))
        elif event.process == process and isinstance(event, (Step, Eval)):
            yield _moved(event, number)
        else:
            yield event


def _planned(steps: Sequence[int], own: Sequence[Step], totals: Mapping[str, float], asked: float | None) -> int | None:
    """The number of planned steps, where only the end of the run tells it: as many as it did."""
    epochs = [step.reported.get(EPOCH) for step in own]
    if _is_at_end(steps, epochs, totals, asked) or _schedule_ran_out(own, epochs, totals):
        return steps[-1]
    return _of_all_epochs(steps, totals, asked) or _end_of_schedule(steps, own, _done(totals, None))


def _of_all_epochs(steps: Sequence[int], totals: Mapping[str, float], asked: float | None) -> int | None:
    """The steps of all epochs that were asked for, where the end says that the run went through them; else None.

    Their number follows from the speed of the whole run, and each epoch has as many; at one further line's distance,
    that line would be there.
    """
    done, stride = _done(totals, None), steps[-1] - steps[-2]
    if not asked or totals.get("epochs") != asked or done is None:
        return None
    fewest, most = max(steps[-1], math.ceil(done[0])), min(steps[-1] + stride - 1, math.floor(done[1]))
    middle = sum(done) / 2
    by_epoch = (round(middle / asked), math.ceil(fewest / asked), math.floor(most / asked))
    possible = (*(round(number * asked) for number in by_epoch), min(max(round(middle), fewest), most))
    return next((number for number in possible if fewest <= number <= most), None)


def _is_at_end(
    steps: Sequence[int], epochs: Sequence[float | None], totals: Mapping[str, float], asked: float | None
) -> bool:
    """True if the last line is that of the last step of all epochs that were asked for, by all digits of its epoch."""
    known = [epoch for epoch in epochs if epoch is not None]
    rounded = rounding(known[len(known) // 2 :])
    return bool(asked) and known[-1] == totals.get("epochs") == asked and rounded * steps[-1] / known[-1] < 0.5


def _schedule_ran_out(own: Sequence[Step], epochs: Sequence[float | None], totals: Mapping[str, float]) -> bool:
    """True if the learning rate is exactly 0 at the last line alone, which is that of the end of a whole epoch.

    Schedules that come down to 0 do so at the last of the steps that were planned, so that the run did not stop before.
    """
    rates = [step.learning_rate for step in own[-2:]]
    whole = totals.get("epochs", 0.0)
    came_to_0 = len(rates) == 2 and rates[1] == 0 and (rates[0] or 0.0) > 0
    return came_to_0 and epochs[-1] == whole and whole > 0 and whole == int(whole)


def _end_of_schedule(steps: Sequence[int], own: Sequence[Step], done: tuple[float, float] | None) -> int | None:
    """The step at which the learning rate comes to 0, if it is the last one by the end of the run, which says how many
    were planned; a straight line and a cosine are known.
    """
    rates = [step.learning_rate or 0.0 for step in own[-2:]]
    if done is None or len(rates) < 2 or not rates[0] > rates[1] > 0:
        return None
    last, stride = steps[-1], steps[-1] - steps[-2]
    for power in (1.0, 0.5):  # a cosine ends as a parabola does
        before, after = (math.pow(rate, power) for rate in rates)
        end = last + stride * after / (before - after)
        if done[0] - 1 <= end <= done[1] + 1 and end < last + stride:
            return max(last, min(round(end), math.floor(done[1])))
    return None


def _moved(event: Step | Eval, number: Mapping[int, int]) -> Event:
    step = number.get(event.step, event.step)
    if isinstance(event, Eval):
        return replace(event, step=step)
    return replace(event, step=step, reported={name: value for name, value in event.reported.items() if name != EPOCH})


def step_numbers(
    epochs: Sequence[float | None],
    totals: Mapping[str, float],
    *,
    planned: int | None = None,
    asked: float | None = None,
) -> list[int] | None:
    """The step of each line, by its epoch and the `totals` of the run; None where more than one number fits, or none.

    All lines are a number of steps apart, but for a first one that may be of step 1. `planned` are the steps that the
    run was to do, `asked` its epochs, as far as the log says so.
    """
    known = [epoch for epoch in epochs if epoch is not None]
    done, whole = _done(totals, planned), totals.get("epochs", 0.0)
    fewest = 2 if "steps" in totals else FEWEST
    if done is None or len(known) < max(fewest, len(epochs)) or whole <= 0 or known != sorted(known):
        return None
    by_epochs = done if "steps" in totals else tuple(steps * whole / (asked or whole) for steps in done)
    found = _by_epochs(known, whole, by_epochs) if len(known) >= FEWEST else None
    return found or _by_count(known, whole, by_epochs)


def _done(totals: Mapping[str, float], planned: int | None) -> tuple[float, float] | None:
    """Between how many and how many steps were done, or planned where no progress bar says how many were done."""
    if "steps" in totals:
        return (totals["steps"],) * 2
    seconds, rate = (totals.get(name, 0.0) for name in ("run_seconds", "steps_per_second"))
    if min(seconds, rate) <= 0:
        return None
    steps, off = seconds * rate, relative_rounding(seconds) + relative_rounding(rate)
    if planned is not None and abs(steps - planned) <= off * planned + 1e-9:
        return float(planned), float(planned)
    return steps * (1 - off), steps * (1 + off)


def _by_epochs(known: Sequence[float], whole: float, done: Sequence[float]) -> list[int] | None:
    """The steps of lines whose epochs have so many digits that only one distance between them fits."""
    middle = sum(done) / 2
    per_epoch, rounded = middle / whole, (done[1] - done[0]) / 2 / middle
    early = known[0] < FIRST_IS_EARLY * (known[-1] - known[1]) / (len(known) - 2)
    regular = known[1:] if early else known
    apart = (regular[-1] - regular[0]) / (len(regular) - 1)
    stride = round(apart * per_epoch)
    of_epoch = rounding(regular[len(regular) // 2 :])
    rounded += of_epoch / whole + (2 * of_epoch / (regular[-1] - regular[0]) if apart > 0 else 1.0)
    # Another number would fit as well, or this one does not.
    if stride < 1 or rounded * stride >= 0.5 or abs(apart * per_epoch - stride) > rounded * stride + 1e-9:
        return None
    places = [max(1, round(epoch / apart)) for epoch in regular]
    if not _rises(places):  # more than one line has the epoch that is printed
        places = _in_a_row(regular, stride / per_epoch, of_epoch)
    if early and places[:1] != [1]:  # the first line is not that early, or others are missing
        return None
    steps = [1] * early + [place * stride for place in places]
    return steps if places and _rises(steps) else None


def _by_count(known: Sequence[float], whole: float, done: Sequence[float]) -> list[int] | None:
    """The steps of lines of which none is missing: with another distance, there would be more of them, or fewer."""
    low, high = done
    found = []
    for early in (False, True):
        lines = len(known) - early
        # (lines) × stride are done, and (lines + 1) × stride are not.
        if high / lines - low / (lines + 1) > MOST_STRIDES:
            return None
        for stride in range(math.floor(low / (lines + 1)) + 1, math.floor(high / lines) + 1):
            steps = [1] * early + [stride * (line + 1) for line in range(lines)]
            is_new = _rises(steps) and steps not in found  # steps 1 and 2 are two ways to the same
            if is_new and _are_at(known, steps, whole, (low + high) / 2, (high - low) / 2):
                found.append(steps)
    return found[0] if len(found) == 1 else None


def _are_at(known: Sequence[float], steps: Sequence[int], whole: float, done: float, off: float) -> bool:
    """True if these steps can have these epochs: to the digits that are printed and to a step, for the last one of an
    epoch may have fewer batches.
    """
    of_line, of_whole = rounding(known[len(known) // 2 :]) + whole / done * (1 + off), rounding([whole])
    return all(
        abs(step * whole / done - epoch) <= of_line + step / done * of_whole + 1e-9
        for step, epoch in zip(steps, known, strict=True)
    )


def _rises(numbers: Sequence[int]) -> bool:
    return all(before < after for before, after in pairwise(numbers))


def _in_a_row(epochs: Sequence[float], apart: float, rounded: float) -> list[int]:
    """The places of lines of which none is missing, by epochs that are not exact; none where not one beginning fits."""
    near = round(sum(epoch / apart - n for n, epoch in enumerate(epochs)) / len(epochs))
    fits = [
        first
        for first in (near - 1, near, near + 1)
        if first > 0 and all(abs(epoch - (first + n) * apart) <= rounded + 1e-9 for n, epoch in enumerate(epochs))
    ]
    return list(range(fits[0], fits[0] + len(epochs))) if len(fits) == 1 else []
