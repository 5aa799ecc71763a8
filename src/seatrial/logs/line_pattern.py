"""The fast path: a line with its numbers taken out is a pattern for the lines that follow.

The lines of one program look alike. What the tables have found in one line is turned into a regular expression in
which everything but the numbers is literal; a line that it matches as a whole has the same keys in the same order, and
nothing else in it. Any other line is read by the tables again, so a pattern saves time and never decides anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache, partial
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from seatrial.events import Step
from seatrial.logs.grammar import Field, Reading, Span
from seatrial.logs.numbers import floats, integers, quantities, quantity, seconds_of_all, seconds_since_epoch
from seatrial.recording import Steps

# Values that hardly ever change from line to line are part of the literal text, until they do.
SELDOM = frozenset({"total", "tokens", "global_batch_size", "loss_scale", "skipped_steps", "nan_steps"})
LONGEST_SEEN = 40  # characters

_TOKENS = re.compile(r"((?<![^\W\d])\d(?:[\w.,:+-]*\w)?|\s{2,})")  # numbers, with what is glued to them; wide blanks
_RUNS = re.compile(r"(\d+|\s{2,})")
# None has a terminal code in it: where a line is matched with its codes, it has no others than the first one had.
_VALUE = r"([^ ,|_\n\x1b]+)"
_WORD = "([^ ]+)"  # for what is certain to be refused afterwards where it is no number
_THOUSANDS = r"([^ |\n\x1b]+)"
_WHOLE = "([0-9]+)"
_NUMBER = r"[0-9][^ |\n\x1b]*"

# The groups that stand outside of the pairs, and the fields that they are.
_OUTSIDE = (("time", "wall_time"), ("time", "monotonic_time"), ("rank", "process"))

Code = tuple[int, str]  # of a terminal: its place in the line without codes, and itself
Read = Callable[[str], Any]
ReadAll = Callable[[Sequence[str]], Sequence[Any]]


class LinePattern(NamedTuple):
    """`match` takes a whole line, `readers` the groups of the match, and `make` what they gave: it makes the step.

    A reader raises ValueError where a value is odd: the tables have to read that line. For many lines at once there are
    `shown` and `printed`, patterns of any number of lines without and with their terminal codes, `column_readers` for
    the texts of each group, which raise KeyError too, and `make_all`, which takes the columns of their values.
    """

    match: Callable[[str], re.Match[str] | None]
    shown: re.Pattern[str]
    printed: re.Pattern[str]
    readers: tuple[Read, ...]
    column_readers: tuple[ReadAll, ...]
    make: Callable[..., Step]
    make_all: Callable[..., list[Step]]
    in_columns: Callable[[Sequence[Sequence[Any]]], Steps]
    total: int | None
    step: int  # the group of its number
    time: int | None  # the group of the date and time
    rank: int | None  # the group of the rank, which may be another one in the next line


def learn_pattern(
    line: str,
    reading: Reading,
    template: Mapping[str, Any],
    vary: Set[str],
    *,
    time: tuple[int, int] | None,
    rank: tuple[int, int] | None,
    codes: Sequence[Code],
) -> LinePattern | None:
    """The pattern of a line that was read; None where its parts overlap.

    `template` are the fields of its step, `vary` the names of `SELDOM` that do change, `time` and `rank` where these
    stand, as do `codes` that were taken out of the line.
    """
    kept = {name for _, _, name, _ in reading.spans if name in SELDOM and name not in vary}
    outside = ((*span, name, None) for name, span in (("time", time), ("rank", rank)) if span)
    spans = sorted((*(span for span in reading.spans if span[2] not in kept), *outside), key=lambda span: span[:3])
    literal = [span for span in reading.spans if span[2] in kept]
    one, many, coloured = "", "", ""  # the pattern of a line, and the faster ones for a text of many lines
    position, numbers = 0, _RUNS
    for span in sorted([*spans, *literal], key=lambda span: span[:2]):
        start, end, name, _ = span
        if start < position:
            return None
        before = _blind(line[position:start], numbers)
        value, fast_value = _value_patterns(line, span, is_literal=name in kept)
        coloured += f"{_coloured(line, slice(position, start), numbers, codes)}{fast_value}"
        one, many, position = f"{one}{before}{value}", f"{many}{before}{fast_value}", end
        numbers = _TOKENS if name == "step" else numbers
    coloured += _coloured(line, slice(position, len(line.rstrip())), _TOKENS, codes)
    rest = _blind(line[position:].rstrip(), _TOKENS)
    if rest.endswith(_NUMBER):  # it may have been cut before its unit
        rest = rest.removesuffix(_NUMBER) + "[0-9.]+"
    ends_in_blank = not rest and line[position:].rstrip("\n")  # it says that the last value is whole
    rest += r"[^\S\n]+" if ends_in_blank else r"[^\S\n]*"
    readers = [_readers(line[start:end], name, field) for start, end, name, field in spans]
    groups = [(name, field.per if field else 1.0) for _, _, name, field in spans]
    make, make_all = _makers(template, groups)
    shown = re.compile(f"^{many}{rest}$", re.MULTILINE)
    return LinePattern(
        match=re.compile(f"{one}{rest}\n?").fullmatch,
        shown=shown,
        printed=re.compile(f"^{coloured}$", re.MULTILINE) if codes else shown,
        readers=tuple(read for read, _ in readers),
        column_readers=tuple(read_all for _, read_all in readers),
        make=make,
        make_all=make_all,
        in_columns=partial(_columns, dict(template), groups),
        total=int(reading.values["total"]) if "total" in kept else None,
        step=[name for _, _, name, _ in spans].index("step"),
        time=_place("time", spans),
        rank=_place("rank", spans),
    )


def _value_patterns(line: str, span: Span, *, is_literal: bool) -> tuple[str, str]:
    """The pattern of a value in a line, and the one that will do in a text of many lines."""
    start, end, name, field = span
    text = line[start:end]
    value = _VALUE
    if name == "time":
        value = "(" + re.sub(r"\d", "[0-9]", re.escape(text)) + ")"
    elif is_literal:
        value = re.escape(text)
    elif field is None:
        value = _WHOLE
    elif not line[end:].strip():
        value = _last(text)
    elif "," in text:
        value = _THOUSANDS
    is_fast = value is _VALUE and line[end : end + 1] == " " and _readers(text, name, field)[0] is float
    return value, _WORD if is_fast else value


def _place(name: str, spans: Sequence[Span]) -> int | None:
    return next((n for n, span in enumerate(spans) if span[2] == name), None)


def _last(text: str) -> str:
    """A value with which the line ends: one with fewer decimals, or without its unit, may have been cut."""
    if text.isdigit():
        return _VALUE
    decimals = re.fullmatch(r"[^.]*\.(\d+)(\D*)", text)
    if decimals is None:
        return f"({re.escape(text)})"
    return rf"([^ ,|\n\x1b]*\.\d{{{len(decimals[1])},}}{re.escape(decimals[2])})"


def _makers(
    template: Mapping[str, Any], groups: Sequence[tuple[str, float]]
) -> tuple[Callable[..., Step], Callable[..., list[Step]]]:
    """Functions from the values of the groups (name, divided by) to a step, and from their columns to the steps.

    They are compiled, as `dataclasses` makes its methods: a loop and the step's constructor take more than twice as
    long. Only names of our own tables get into the text; whatever a log says goes in as a value.
    """
    places = {name: f"g{n}" + (f" / {per!r}" if per != 1.0 else "") for n, (name, per) in enumerate(groups)}
    places |= {field: places[name] for name, field in _OUTSIDE if name in places}
    targets = dict.fromkeys(template, "fields") | dict.fromkeys(template["reported"], "reported")
    stores = [f"{targets[name]}[{name!r}] = {value}" for name, value in places.items() if name in targets]
    body = ["fields, reported = blank(), others()", *stores, "fields['reported'] = reported"]
    body += ["step = new(Step)", "put(step, '__dict__', fields)"]
    values = "".join(f"g{n}, " for n in range(len(groups)))
    known: dict[str, Any] = {
        "new": object.__new__, "put": object.__setattr__, "Step": Step,  # a copy is faster than a display with its keys
        "blank": dict(template).copy, "others": dict(template["reported"]).copy,
    }  # fmt: skip
    exec(_compiled("\n    ".join((f"def make({values}):", *body, "return step"))), known)
    loop = "\n        ".join((f"for {values} in zip(*columns):", *body, "steps.append(step)"))
    exec(_compiled(f"def make_all(*columns):\n    steps = []\n    {loop}\n    return steps"), known)
    return known["make"], known["make_all"]


def _columns(
    template: Mapping[str, Any], groups: Sequence[tuple[str, float]], columns: Sequence[Sequence[Any]]
) -> Steps:
    """The steps of the same lines, by the columns of the groups' values."""
    found = {name: np.divide(c, per) if per != 1.0 else c for (name, per), c in zip(groups, columns, strict=True)}
    if "time" in found:
        found["time"] = np.array(found["time"])
    found |= {field: found[name] for name, field in _OUTSIDE if name in found}
    constants = {**template, **template["reported"]}
    every = {name: [value] * len(columns[0]) for name, value in constants.items() if value not in (None, "")} | found
    return Steps.of_columns(every["process"][0], every, template["reported"])


@lru_cache(maxsize=64)
def _compiled(text: str) -> CodeType:
    """The files of a run's ranks have the same patterns."""
    return compile(text, "<pattern>", "exec")


def _coloured(line: str, part: slice, tokens: re.Pattern[str], codes: Sequence[Code]) -> str:
    """A part of a line as a pattern, with the codes that stand in it or beside it."""
    found, start = "", part.start
    for place, code in codes:
        if start <= place <= part.stop:
            found += _blind(line[start:place], tokens) + re.escape(code)
            start = place
    return found + _blind(line[start : part.stop], tokens)


@lru_cache(maxsize=256)  # between their values, the lines of all ranks are the same
def _blind(text: str, tokens: re.Pattern[str]) -> str:
    """The text as a pattern: any number where it has one, any number of blanks where it has several.

    In what stands before a step, a number is digits and nothing else: all of it says who printed the line, and when.
    """
    number = "[0-9]+" if tokens is _RUNS else _NUMBER
    return "".join(
        re.escape(piece) if n % 2 == 0 else " +" if piece.isspace() else number
        for n, piece in enumerate(tokens.split(text))
    )


def _readers(text: str, name: str, field: Field | None) -> tuple[Read, ReadAll]:
    """The readers of the values in the place of this one: of each by itself, and of many at once."""
    if name == "time":
        return seconds_since_epoch, seconds_of_all
    if field is None or name == "tokens":
        return int, integers
    if field.part or field.missing or not _is_plain(text):
        return partial(_exact, field), partial(_all_exact, field)
    return float, floats


def _is_plain(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# Figures such as the memory's, or a share of two digits, come again and again.
_seen = lru_cache(maxsize=1 << 12)(quantity)


def _exact(field: Field, text: str) -> float:
    value = _seen(text, field.part) if len(text) < LONGEST_SEEN else quantity(text, field.part)
    if value is None or value in field.missing:
        raise ValueError("not a number")
    return value


def _all_exact(field: Field, texts: Sequence[str]) -> Sequence[float]:
    """`_exact` of each."""
    if texts.count(texts[0]) < len(texts) and not field.part:
        try:
            found = quantities(texts)
        except (KeyError, ValueError):  # one by one
            pass
        else:
            if not field.missing.isdisjoint(found):
                raise ValueError("not a number")
            return found
    values = {text: _exact(field, text) for text in set(texts)}
    return list(map(values.__getitem__, texts))
