"""The description of a family of logs: tables of how its programs spell what happens.

A *step line* has a head, which says which step it is, and after it pairs of a key and a value, in any order and number.
A *note* is any other line worth reading. Everything is searched for, nothing is expected at the start of a line: a
print may be glued to the one before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from seatrial.logs.numbers import commas_for, commas_of, quantity

# "z_loss", "mtp_1 loss", "loss/policy": a part of the loss or one beside it, but not "loss scale".
_LOSS = re.compile(r"(?<![a-z])loss(?:es)?(?![a-z]|[ _-]?scal)", re.IGNORECASE)
LONGEST_KEY = 60  # characters
UNKNOWN_STEP = -1  # of a step that is held, until one of its lines says its number


@dataclass(frozen=True, kw_only=True)
class Field:
    """The field that a value goes to: `name` is a field of `events.Step` or one of `events.REPORTED`.

    The printed number is divided by `per` (1000 for milliseconds), and `plus` is added (1 for a count of the steps
    before this one). Of "a/b/c", the value is the one numbered `part`. `missing` is what the program may print for
    want of a value. A `preferred` field wins over others of the same name.
    """

    name: str
    per: float = 1.0
    plus: float = 0.0
    part: int = 0
    missing: frozenset[float] = frozenset()
    preferred: bool = False


PHASES = ("profiler", "batch_rampup")  # of `events.Step`

Meaning = Literal["facts", "start", "other", "end", "eval", "checkpoint", "figures", "summary"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Note:
    """A line, found by `literal` and then by `pattern`, whose named groups are what it says.

    facts       of the run: fields of `events.RunStarted`, `sequence_length`, `global_batch_size`, or any other name;
                `versions__jax` is "jax" of `versions`; `planned_by__verl_sft` counts only for steps of that family
    start       a program begins (again): the next step belongs to a new attempt; groups as for facts. `trains`: it can
                only be a training, as can one that says how many steps it plans
    other       the program that has begun is no training: it samples, evaluates, converts a checkpoint
    end         the run ended by itself, or with `exit_code`, or for another `reason` of `events.RunEnded`
    eval        groups step, loss, seconds; score and shortfall as in `events.Eval`
    checkpoint  groups step, seconds; `action` is "save" or "restore"
    figures     of the next step: groups named as in `Field.name`, in units of `per`
    summary     figures of the whole run, which count for nothing: reported only where there are no steps
    """

    means: Meaning
    literal: str
    pattern: re.Pattern[str]
    action: str = "save"
    per: float = 1.0
    trains: bool = False


def note(means: Meaning, literal: str, pattern: str | re.Pattern[str] = "", **more: Any) -> Note:
    """A row of a table of notes, with `more` fields; without a pattern, the literal says it all."""
    return Note(means=means, literal=literal, pattern=re.compile(pattern or re.escape(literal)), **more)


NEVER = re.compile(r"(?!)")  # matches nothing
# What a line means that a `custom_reader` has found by itself.
FACTS, START, END, EVAL = (Note(means=means, literal="", pattern=NEVER) for means in ("facts", "start", "end", "eval"))
RESTORE = Note(means="checkpoint", literal="", pattern=NEVER, action="restore")

Span = tuple[int, int, str, Field | None]  # start, end, name; the field of a value that goes through a table


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One step line: `values` by `Field.name`, and `step` and maybe `total`; `spans` are where its numbers stand.

    A loss beside the loss is in `values` by its own key, where it is not finite. `alike`: the numbers of a line that
    looks the same can be read one by one. `inferred`: the number of the step is that of a progress bar, which may have
    been drawn for the step before. `redrawn`: a progress bar of the step's own parts (an epoch's batches) stands behind
    it, drawn with a running mean of the loss each time that it moves.
    """

    values: Mapping[str, float]
    phase: str = ""
    spans: tuple[Span, ...] = ()
    alike: bool = True
    inferred: bool = False
    redrawn: bool = False


Found = Reading | tuple[Note, Mapping[str, Any]]  # a step, or a note with what it says
ReadLine = Callable[[str], Iterable[Found]]


def stateless(read_line: ReadLine) -> Callable[[], ReadLine]:
    """The `custom_reader` of lines of which none depends on another; one that can be pickled, unlike a lambda."""
    return partial(_itself, read_line)


def _itself(read_line: ReadLine) -> ReadLine:
    return read_line


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """Programs whose logs are spelled alike.

    `anchors` all stand in every step line. `head` finds it: its group `step` is the number, `total` that of the last
    one, and any of `PHASES` says that its time does not count; a group with the name of a field's key is a pair, too.
    `pair` finds (key, value) behind it; where `whole` is not found there, the line was cut before it said enough to be
    a step. `counted_from` is the number of the first step, `last_is_total` says that "49/49" is the last of 50.

    `custom_reader` is for lines that are no pairs at all: called once per log, it makes what is given every line with
    one of `custom_words` and returns readings, and one of `FACTS`, `START`, `END`, `EVAL` and `RESTORE` with what the
    line says. Among the values of either, `time` is in seconds since the epoch. What it makes may have a method
    `finish`, which returns what was held back until more of the log is read. A family without step lines of pairs has
    no `anchors` and `head`.

    `launcher_reader` reads of the lines with `launcher_words` what the program's launcher says of any program that it
    starts; `custom_reader` includes it.

    `continued` matches the lines that go on with a step line, after the prefixes of launchers: `pair` finds more pairs
    in them, of which there has to be one that is known. Where the step line has no total, the number of the step may be
    among them, as a field named "step"; without either, it is `UNKNOWN_STEP`. `fallback` says that its steps count only
    where no other family reports any: DeepSpeed prints beside the programs that use it. The steps of either are held
    until another step or a note comes.

    `objective` is what the loss is of, where it is no cross-entropy and need not fall: "policy". `loss_optional` says
    that a run may print no loss at all. `extra_steps` is how many more than planned a run may have done that ends by
    itself.
    """

    name: str
    counted_from: int
    last_is_total: bool = False
    anchors: tuple[str, ...] = ()
    head: re.Pattern[str] = NEVER
    pair: re.Pattern[str] = NEVER
    whole: re.Pattern[str] | None = None
    fields: Mapping[str, Field] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    custom_reader: Callable[[], ReadLine] | None = None
    custom_words: tuple[str, ...] = ()
    launcher_reader: Callable[[], ReadLine] | None = None
    launcher_words: tuple[str, ...] = ()
    continued: re.Pattern[str] | None = None
    fallback: bool = False
    objective: str = ""
    loss_optional: bool = False
    extra_steps: int = 0


@lru_cache(maxsize=64)  # for the next file, for which it is the same one
def without_steps(family: Family) -> Family:
    """A family of which only the notes are read."""
    return replace(family, anchors=(), head=NEVER, custom_reader=None, custom_words=())


@lru_cache(maxsize=64)
def of_a_launcher(family: Family) -> Family:
    """A family of which only the notes are read, of any program, and what its launcher says."""
    reader, words = family.launcher_reader, family.launcher_words
    return replace(without_steps(family), custom_reader=reader, custom_words=words)


_LOSS_ALONE = {"loss": Field(name="loss")}


class LineValues(NamedTuple):
    """`values` by `Field.name`; `places` says which of the pairs each of these is from.

    A loss that no field is for is among the values, by its own key, where it is not finite though the loss itself is:
    that much has to be known of it. `alike`: the numbers of a line that looks the same can be read one by one.
    """

    values: dict[str, float]
    places: dict[str, int]
    alike: bool


def read_values(pairs: Sequence[tuple[str, str]], fields: Mapping[str, Field]) -> LineValues:
    """The values in the pairs of one line."""
    known = [(place, field, text) for place, (key, text) in enumerate(pairs) if (field := fields.get(key))]
    with_commas = any("," in text for _, _, text in known)
    commas = commas_of((field.name, text) for _, field, text in known) if with_commas else "thousands"
    values: dict[str, float] = {}
    places: dict[str, int] = {}
    for place, field, text in known:
        if field.name in values and not field.preferred:
            continue
        value = quantity(text, field.part, commas_for(field.name, commas))
        if value is not None and value not in field.missing:
            values[field.name], places[field.name] = value / field.per + field.plus, place
    others = not_finite(pairs, places.get("loss"), values.keys())
    alike = commas == "thousands" and not others
    return LineValues({**values, **(others if math.isfinite(values.get("loss", 0.0)) else {})}, places, alike=alike)


def loss_of(text: str) -> dict[str, float]:
    """The value of a step whose loss is this text; none where that is no number."""
    return read_values([("loss", text)], _LOSS_ALONE).values


def not_finite(pairs: Sequence[tuple[str, str]], loss: int | None, taken: Set[str]) -> dict[str, float]:
    """The losses that are not finite, besides `loss`, which is the place of the one that counts."""
    found = {}
    for place, (key, text) in enumerate(pairs):
        if place != loss and _LOSS.search(key):
            value = quantity(text)
            if value is not None and not math.isfinite(value):
                found[_name(key, taken)] = value
    return found


def _name(key: str, taken: Set[str]) -> str:
    """The name of such a loss: its key, as far as it can be printed, unless that is a name of the table."""
    name = "".join(letter for letter in key if letter.isprintable())[-LONGEST_KEY:]
    return f"other {name}" if name in taken else name
