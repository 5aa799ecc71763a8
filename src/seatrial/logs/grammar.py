"""What a family of logs is: tables that say how its programs spell what happens.

A *step line* has a head, which says which step it is, and after it pairs of a key and a value, in any order and number.
A *note* is any other line worth reading. Everything is searched for, nothing is expected at the start of a line: a
print may be glued to what was printed before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Field:
    """Where a value goes: `name` is a field of `events.Step` or one of `events.REPORTED`.

    The printed number is divided by `per` (1000 for milliseconds). Of "a/b/c", the value is the one numbered `part`.
    `missing` is what the program prints for want of a value. A `preferred` field wins over others of the same name.
    """

    name: str
    per: float = 1.0
    part: int = 0
    missing: float | None = None
    preferred: bool = False


PHASES = ("profiler", "batch_rampup")  # of `events.Step`

Meaning = Literal["facts", "start", "end", "eval", "checkpoint", "figures", "summary"]


@dataclass(frozen=True, kw_only=True)
class Note:
    """A line, found by `literal` and then by `pattern`, whose named groups are what it says.

    facts       of the run: fields of `events.RunStarted`, `sequence_length`, `global_batch_size`, or any other name;
                `versions__jax` is "jax" of `versions`
    start       a program begins (again): the next step belongs to a new attempt; groups as for facts
    end         the run ended by itself, or with `exit_code`, or for another `reason` of `events.RunEnded`
    eval        groups step, loss, seconds
    checkpoint  groups step, seconds; `action` says which
    figures     of the next step: groups named as in `Field.name`, in units of `per`
    summary     figures of the whole run, which count for nothing: told only where there are no steps
    """

    means: Meaning
    literal: str
    pattern: re.Pattern[str]
    action: str = "save"
    per: float = 1.0


Span = tuple[int, int, str, Field | None]  # start, end, name; the field of a value that goes through a table


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One step line: `values` by `Field.name`, and `step` and maybe `total`; `spans` are where its numbers stand.

    A loss beside the loss is in `values` by its own key, where it is not finite. `alike`: the numbers of a line that
    looks the same can be read one by one. `inferred`: the number of the step is that of a progress bar, which may have
    been drawn for the step before.
    """

    values: Mapping[str, float]
    phase: str = ""
    spans: tuple[Span, ...] = ()
    alike: bool = True
    inferred: bool = False


ReadLine = Callable[[str], Iterable[Reading | tuple[Note, Mapping[str, Any]]]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Programs whose logs are spelt alike.

    `anchors` all stand in every step line. `head` finds it: its group `step` is the number, `total` that of the last
    one, and any of `PHASES` says that this is none whose time counts. `pair` finds (key, value) behind it; where
    `whole` is not found there, the line was cut before it said enough to be a step.
    `counted_from` is the number of the first step, `last_is_total` says that "49/49" is the last of 50. `other` is for
    lines that are no pairs at all: called once a log, it makes what is given every line with one of `other_words` and
    returns readings, and notes with what they say. Among the values of either, `time` is in seconds since the epoch.
    """

    name: str
    anchors: tuple[str, ...]
    head: re.Pattern[str]
    pair: re.Pattern[str]
    fields: Mapping[str, Field]
    counted_from: int
    last_is_total: bool = False
    whole: re.Pattern[str] | None = None
    notes: tuple[Note, ...] = ()
    other: Callable[[], ReadLine] | None = None
    other_words: tuple[str, ...] = ()
