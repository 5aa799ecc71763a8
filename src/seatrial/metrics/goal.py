"""The goal of a run by its configuration, its own word or its end, and whether the run reached it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seatrial.events import Eval
from seatrial.metrics.numbering import counts_from, stride_of
from seatrial.metrics.record import Record
from seatrial.spec import RunSpec


class Goal(NamedTuple):
    """The `planned` steps and the rest as `Completion` has it; `reached`: the run came to its last step."""

    counted_from: int
    planned: int | None
    stride: int
    stopped_early: bool
    early_of: int | None
    reached: bool
    lines_counted: bool


def goal_of(
    spec: RunSpec | None, main: Record, evals: Sequence[Eval], given: int | None, *, takes_its_word: bool
) -> Goal:
    """The goal of the run whose record is `main`; `given` is the number of steps that whoever judges it says.

    `takes_its_word`: where nobody says how many steps were planned, a run that says that it is done did all of them.
    """
    steps, first = main.steps.numbers, counts_from(main)
    asked = _asked(spec, main, given, first)
    # As many lines as steps: one for each. Else a line may be of several steps.
    lines_counted = main.facts.get("lines_counted") is True and asked != len(steps)
    asked = None if lines_counted else asked
    planned = asked
    if planned is None and steps and not lines_counted:
        its_own = steps[-1] - first + 1 if takes_its_word and _is_done(main) else None
        planned = _told_at_its_end(main, "completed", "planned_steps") or its_own
    if planned is not None and steps:
        planned = (None if spec else _planned_by_tokens(main, first)) or planned
        planned += _steps_more(main, steps[-1] - (first + planned - 1))
    stride = stride_of(main)
    # A limit of time says how long a run is only where nobody asked for steps or epochs.
    early = ("stopped_early",) if spec else ("stopped_early", "time_spent")
    stopped_early = bool(steps) and main.reason in early
    if stopped_early:  # as it was asked to: the step that it came to is the last of the run
        last_step = max(steps[-1], evals[-1].step) if main.from_other_trainer and evals else steps[-1]
        told = _told_at_its_end(main, "time_spent", "steps") or last_step
        stopped_early = told < last_step + stride  # else the log lacks the lines before its end
        planned = (last_step if stopped_early else told) - first + 1
    last = first + planned - 1 if planned else None
    came_to_it = bool(steps) and last is not None and (stopped_early or steps[-1] >= last)
    return Goal(
        counted_from=first,
        planned=planned,
        stride=stride,
        stopped_early=stopped_early,
        early_of=asked if stopped_early else None,
        reached=came_to_it and not main.idle,
        lines_counted=lines_counted,
    )


def _asked(spec: RunSpec | None, main: Record, given: int | None, first: int) -> int | None:
    """The number of planned steps: by the configuration, by the run's own word, or by whoever judges it."""
    said = (start.planned_steps for start in reversed(main.starts) if start and start.planned_steps)
    asked_for = spec.steps if spec and spec.epochs is None else None  # epochs may end it sooner, which it says itself
    known = asked_for or next(said, spec.steps if spec else None)
    # A program that counts from 0 may go on to the step of the number that is given.
    return known or (given and given + int(first == 0 and given in main.steps.numbers[-1:]))


def _planned_by_tokens(main: Record, first: int) -> int | None:
    """The steps in which a run came to the tokens that it was asked for, by its own count, and ended by itself there.

    Megatron over DeepSpeed stops at the first step with so many, whatever the number of iterations that it prints.
    """
    asked = str(main.facts.get("train_tokens", ""))
    if not asked.isdecimal() or main.reason != "completed":
        return None
    counted = [(step.step, step.reported.get("consumed_tokens")) for step in main.steps[-2:]]
    reached = [step for step, tokens in counted if tokens is not None and tokens >= int(asked) > 0]
    return reached[0] - first + 1 if reached == [main.steps[-1].step] else None


def _steps_more(main: Record, over: int) -> int:
    """The steps beyond the planned ones of a run that ended by itself, if its program says that it does so many."""
    said = str(main.facts.get("extra_steps", ""))
    return over if main.reason == "completed" and said.isdecimal() and 0 < over <= int(said) else 0


def _told_at_its_end(main: Record, reason: str, name: str) -> int | None:
    """A number of steps that the run says at its end, if it ended for this reason."""
    told = main.totals.get(name) if main.reason == reason else None
    return None if told is None else int(told)


def _is_done(main: Record) -> bool:
    """True if the program says at its end that it did all that it was to do: its last step is the planned one.

    Those of known families say so of their epochs. Of an unknown program, whoever confirms the guess takes its word.
    """
    says_so = bool(main.facts.get("guessed")) or main.totals.get("planned_epochs") is not None
    return main.reason == "completed" and says_so
