"""Hugging Face's Trainer, and TRL, axolotl and ms-swift on top: `{'loss': 2.31, 'grad_norm': 1.25, 'epoch': 0.04}`.

Few of these lines say which step they are of. For the others it is the progress bar that was drawn before or after
them: a fast run draws it late, so the distance of the lines before or the epoch decides between the two. Where no bar
is in the log (`disable_tqdm`, or a bar that went to the other stream), the lines are counted; `step_numbers` finds out
what each of them stands for. So are those that come late, many together, while the bar goes by in time: `nohup python
x.py > log` buffers standard output. After each line the trainer draws its bar again, so two lines without a bar between
them were not printed when they were due. Values are strings since version 5. No line says how long a step took, only
the last how long the whole run did: from that, and from how many steps it says were done in a second, follows which of
several bars was the training's. A bar that goes far ahead in its first seconds, and then slowly, is of a run that was
resumed there.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from seatrial.logs.grammar import END, EVAL, FACTS, RESTORE, Family, Field, Found, Reading, note, read_values
from seatrial.logs.numbers import NUMBER, quantity
from seatrial.logs.rounding import relative_rounding

FIELDS: Mapping[str, Field] = {
    "loss": Field(name="loss"),
    "grad_norm": Field(name="grad_norm"),
    "learning_rate": Field(name="learning_rate"),
    "ppl": Field(name="perplexity"),
    "tokens_per_second_per_gpu": Field(name="tokens_per_second_per_device"),
    "num_input_tokens_seen": Field(name="consumed_tokens"),
}
# Of the line that ends a run: its key → a name of `events.TOTALS`.
TOTALS: Mapping[str, str] = {
    "train_runtime": "run_seconds",
    "train_steps_per_second": "steps_per_second",
    "train_samples_per_second": "samples_per_second_total",
    "epoch": "epochs",
}

REWARD = "reward"  # a line with it is of reinforcement learning (TRL's GRPO, RLOO): its loss is the policy's

# A bar that is at this step when it is drawn first, and was so many times faster up to there than in the steps after
# it, began at a checkpoint.
MOST_AT_ONCE, FEWEST_AFTER, FASTER = 20, 5, 20
LONGEST_STEP = 16  # digits; more are none

_DICT = re.compile(r"\{('(?:loss|eval_loss|train_runtime)': [^{}]{1,4000})\}")
_PAIR = re.compile(rf"'([^']{{1,60}})': '?({NUMBER})(?:/(\d{{1,15}}))?'?(?=,|$)", re.IGNORECASE)
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,300}\| *(\d{1,15})/(\d{1,15}) \[(?:(?:(\d{1,4}):)?(\d{1,2}):(\d\d)<)?")
_NO_DESCRIPTION = re.compile(r"(?:^|[\]}]:?|(?:^|\s)\d+:)\s*$")  # other bars say what they count: "Map:  50%|"

_START = note("start", "Total optimization steps", r"Total optimization steps = (?P<planned_steps>\d[\d,]{0,20})")


def objective_of(row: Container[str]) -> Mapping[str, str]:
    """The fact of the run that names the objective of the loss in a line or row."""
    return {"objective": "policy" if REWARD in row else ""}


def planned_by(totals: Mapping[str, str], known: Iterable[int]) -> Mapping[str, str]:
    """The number of planned steps: the only one of these numbers that the speed of the whole run fits."""
    seconds, rate = (quantity(totals.get(name, "")) or 0.0 for name in ("run_seconds", "steps_per_second"))
    steps, off = seconds * rate, sum(map(relative_rounding, (seconds, rate)))
    fits = [total for total in known if abs(steps - total) <= off * total + 1e-9]
    return {"planned_steps": str(fits[0])} if len(fits) == 1 else {}


class _Said(NamedTuple):
    """A line of a step: its numbers by key, the step and the total by its own word, and the step of the bar before."""

    pairs: Mapping[str, str]
    step: int | None
    total: int | None
    drawn: int | None


class _Log:
    """The bar of the training, as it was drawn last, and the line that waits for the next one."""

    def __init__(self) -> None:
        self._total: int | None = None  # the first bar is the training's; an evaluation counts to something else
        self._bars: dict[int, int] = {}  # of each bar without a description: its total → the step it came to
        self._resumed: _Resumed | None = None
        self._step: int | None = None
        self._last, self._apart = 0, 0  # the last line's step, and how many it is behind the one before
        self._lines = 0  # of steps, as far as they are counted
        self._is_late = False  # whether lines come after the bar has gone on
        self._has_steps = False  # whether a line got its step by the bar
        self._of_policy = False  # whether a line had a reward; the next run of the log may have none
        self._per_epoch: float | None = None  # steps, by a line with the same bar before and after it
        self._waits: _Said | None = None

    def __call__(self, line: str) -> Iterator[Found]:
        if begun := _START.pattern.search(line):
            yield from self.finish()
            self._total, self._step = int(begun[1].replace(",", "")), None
            self._begin()
        marks = [*_BAR.finditer(line), *_DICT.finditer(line)]
        for mark in sorted(marks, key=lambda found: found.start()):
            if mark.re is _DICT:
                yield from self._read_dict(mark[1])
            elif _NO_DESCRIPTION.search(line[max(0, mark.start() - 40) : mark.start()]):
                yield from self._read_bar(mark)

    def _read_bar(self, mark: re.Match[str]) -> Iterator[Found]:
        step, total = int(mark[1]), int(mark[2])
        self._bars[total] = step
        if self._total is None:
            self._total = total
        if total != self._total:
            return
        yield from self._release(step)
        if self._resumed is None or step < (self._step or 0):
            self._resumed = _Resumed()
        if mark[4] and (known := self._resumed.at(step, _seconds(mark))) is not None:
            yield RESTORE, {"step": str(known)}
        self._step = step

    def finish(self) -> Iterator[Found]:
        """The line that waits for a bar, where none comes."""
        yield from self._release(None)

    def _begin(self) -> None:
        self._last, self._apart = 0, 0
        self._lines, self._is_late, self._has_steps = 0, False, False

    def _read_dict(self, text: str) -> Iterator[Found]:
        if self._waits is not None and "'loss'" in text and not self._has_steps:  # no bar since the last one
            self._is_late = True
        yield from self.finish()
        found = list(_PAIR.finditer(text))
        pairs = {pair[1]: pair[2] for pair in found}
        named = next((pair for key in ("step", "global_step/max_steps") for pair in found if pair[1] == key), None)
        own = int(named[2]) if named and named[2].isdigit() and len(named[2]) < LONGEST_STEP else None
        step = self._step if own is None else own
        if "train_runtime" in pairs and "loss" not in pairs:  # some versions have the time so far in every line
            yield END, self._totals(pairs)
            self._begin()
        elif "eval_loss" in pairs:
            yield EVAL, {"loss": pairs["eval_loss"], **({} if step is None or self._is_late else {"step": step})}
        elif "loss" in pairs:
            if self._of_policy or REWARD in pairs:
                self._of_policy = True
                yield FACTS, objective_of(pairs)
            total = int(named[3]) if named and named[3] else self._total
            said = _Said(pairs, own, total, self._step)
            if own is None and self._step is not None and not self._is_late:
                self._waits = said
            else:
                yield from self._read_step(said, own)

    def _totals(self, pairs: Mapping[str, str]) -> Mapping[str, str]:
        """The totals of a run by its last line, and by its progress bar where the lines came late."""
        totals = {TOTALS[key]: value for key, value in pairs.items() if key in TOTALS}
        return {**totals, **(self._drawn(totals) if self._is_late or not self._has_steps else {})}

    def _drawn(self, totals: Mapping[str, str]) -> Mapping[str, str]:
        """The step and the total of the training's progress bar; of several, the one that the end of the run fits."""
        found = planned_by(totals, self._bars)
        return {**found, "steps": str(self._bars[int(found["planned_steps"])])} if found else {}

    def _release(self, drawn: int | None) -> Iterator[Found]:
        """The line that waits, now that the bar was drawn at a step."""
        if self._waits is not None:
            said, self._waits = self._waits, None
            yield from self._read_step(said, None if self._is_late else self._between(said, drawn))

    def _between(self, said: _Said, after: int | None) -> int | None:
        """The step of a line, which the bar had not yet passed before it, and had reached after it."""
        before, epoch = said.drawn, quantity(said.pairs.get("epoch", ""))
        if before is None or after is None or after < before:
            return before
        if before in (0, after):  # there is no step 0
            self._per_epoch = after / epoch if epoch else self._per_epoch
            return after
        if not epoch or self._per_epoch is None:
            return self._due(before, after) or before
        return min(max(round(epoch * self._per_epoch), before), after)

    def _due(self, before: int, after: int) -> int | None:
        """The step that is as far behind that of the last line as that behind the one before, if it is among these."""
        due, is_regular = self._last + self._apart, self._apart > 0 and self._last % self._apart == 0
        return due if is_regular and before <= due <= after < before + self._apart else None

    def _read_step(self, said: _Said, step: int | None) -> Iterator[Found]:
        values = read_values(list(said.pairs.items()), FIELDS).values
        of = {"total": said.total} if said.total else {}
        if step:
            self._has_steps = True
            self._last, self._apart = step, step - self._last if self._last else 0
            yield Reading(values={"step": step, **of, **values}, inferred=said.step is None)
        elif step is None and (self._is_late or self._step is None):
            epoch = quantity(said.pairs.get("epoch", ""))
            self._lines += 1
            yield FACTS, {"lines_counted": True}
            if epoch is not None:
                values["epoch"] = epoch
            yield Reading(values={"step": self._lines, **of, **values}, inferred=True)


class _Resumed:
    """Finds out from a bar whether its run was resumed: it is far ahead at once, and goes on slowly."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None  # the step at which it was drawn first, behind 0; seconds
        self._is_told = False

    def at(self, step: int, seconds: float) -> int | None:
        """The last step before the run was resumed, where this step shows that it was; told once."""
        if self._first is None and step > 0:
            self._first = (step, seconds)
        if self._first is None or self._is_told:
            return None
        first, begun = self._first
        if first < MOST_AT_ONCE or step < first + FEWEST_AFTER or seconds <= begun:
            return None
        self._is_told = True
        at_once, then = first / (begun + 1), (step - first) / (seconds - begun)
        return first - 1 if at_once > FASTER * then else None


def _seconds(mark: re.Match[str]) -> float:
    """The time that a bar shows."""
    return 3600 * int(mark[3] or 0) + 60 * int(mark[4]) + int(mark[5])


FAMILY = Family(
    name="transformers",
    counted_from=1,
    custom_reader=_Log,
    custom_words=("{'loss': ", "{'eval_loss': ", "{'train_runtime': ", "%|", "Total optimization steps = "),
    notes=(
        _START,
        note(
            "facts", "Total train batch size", r"Total train batch size \([^)]{1,80}\) = (?P<global_batch_size>[\d,]+)"
        ),
        # The command line, as DeepSpeed's launcher prints it; a number of steps goes before one of epochs.
        note(
            "facts",
            "--num_train_epochs",
            r"^(?!.{0,20000}--max_steps[ =]\d)"
            r".{0,20000}--num_train_epochs[ =](?P<planned_epochs>\d{1,6}(?:\.\d{1,6})?)\b",
        ),
        # The arguments, as a program prints them.
        note(
            "facts",
            "num_train_epochs",
            r"(?<![\w-])num_train_epochs['\"]?(?:=|: ?)(?P<planned_epochs>\d{1,6}(?:\.\d{1,6})?)\b",
        ),
    ),
)
