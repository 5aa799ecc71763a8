"""Guesses how a log is spelled whose trainer nobody knows: which number is the step, which the loss, which the time.

Only what is the same throughout the file counts. The step is a whole number that grows by the same amount from line to
line; the loss is what is called so; a time needs a unit, and must not be the time since the start. Where no line has a
step, that of an epoch will do. A guess is a family like any other, and says of itself how it came about.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from seatrial.logs.epoch_steps import EpochSteps
from seatrial.logs.grammar import Family, Field, note
from seatrial.logs.lines import read_prefix, split_line, without_codes
from seatrial.logs.metric_keys import Row, number, plain
from seatrial.logs.numbers import CUT, NUMBER

NAME = "generic"
FEWEST = 4  # steps: three times the same distance
REGULAR = 0.9  # of the distances between steps
USUAL = 0.9  # of the lines of steps, in which a figure stands
MOST_LINES, LONGEST = 5000, 2000  # lines that are looked at; characters of one
MOST_SHOWN = 160  # characters of the example

# Of "loss nan dt 1.5", nan is a value, and no word of the next key.
_WORD = r"(?!(?:nan|inf(?:inity)?)(?![\w/.]))[A-Za-z_][\w/.]*"
_KEY = rf"{_WORD}(?:[ -]{_WORD}){{0,3}}(?: ?\([^()\d]{{1,12}}\))?"
_UNIT = r"(?: ?(?:ms|sec(?:onds)?|s)(?![\w/])|%)?"
# A key, and the number behind it; of "[10/100]" and "10/100", a step and the total.
_PAIR_TEXT = rf"(?<![\w.])({_KEY})['\"]?(?: ?[:=] ?| {{1,8}}|\t|: {{1,8}})['\"]?[\[(]?({NUMBER}{_UNIT})(?!\.?{CUT})"
PAIR = re.compile(_PAIR_TEXT, re.IGNORECASE)
_BARE = re.compile(r"(?i:(?<!epoch)(?<!epoch[: ]))[\[(](\d{1,9})/(\d{1,9})[\])]")
BARE = "[n/m]"  # stands in for the key of a step that has none

_IS_LOSS = re.compile(r"(?<![a-z])loss(?![a-z])", re.IGNORECASE)
_NOT_TRAINED = re.compile(r"(?<![a-z])(?:eval|val|valid|validation|test|aux|scale|scaling|best|min|z)(?![a-z])", re.I)
_OF_A_POLICY = re.compile(r"(?<![a-z])(?:act|actor|policy|pg|ppo|grpo|surrogate)(?![a-z])", re.I)
_STEP_WORDS = ("global_step", "step", "iteration", "iter", "update", "it")
_LOSS_WORDS = ("loss", "train_loss", "train/loss", "training_loss", "lm_loss", "ce_loss")
_NO_STEP = re.compile(
    r"epoch|rank|gpu|node|worker|loss|size|port|pid|seed|lr|batch_?size|tokens|samples|layer|time|elapsed|sec|eta|mem",
    re.I,
)
_SECONDS = re.compile(r"\d ?(ms|s|sec|seconds)$")
_OF_A_STEP = re.compile(r"(?<![a-z])(?:dt|step|iter|iteration|it|elapsed|time|took|duration|speed)(?![a-z])", re.I)
_FIGURES: Mapping[str, Field] = {
    **dict.fromkeys(("lr", "learning_rate"), Field(name="learning_rate")),
    **dict.fromkeys(("grad_norm", "gradient_norm", "gnorm", "gradnorm"), Field(name="grad_norm")),
    "mfu": Field(name="mfu"),
    **dict.fromkeys(
        ("step_time_ms", "iter_time_ms", "time_ms", "dt_ms", "ms", "ms/step", "ms/iter", "ms/it", "dt_(ms)"),
        Field(name="seconds", per=1000),
    ),
    **dict.fromkeys(
        ("step_time_s", "iter_time_s", "dt_s", "s/step", "s/iter", "s/it", "sec/step", "sec/iter", "dt_(s)"),
        Field(name="seconds"),
    ),
}  # fmt: skip

# What a logger puts before a line: the time, the level, and maybe where in the program it is from.
_LOGGED = (
    r"(?:[^\n]{0,100}?\b(?-i:INFO|SUCCESS|NOTICE|LOGS?)\b[\s|:\]-]{1,12}"
    r"(?:[\[(]?[\w.<>/]{1,60}(?::[\w.<>]{1,60}){0,2}[\])]?(?:\s*[|:-]\s*|\]\s*)){0,2}"
    r"|[IN]\d{4} [\d:.]{8,18} {1,8}\d{1,9} [\w./]{1,60}:\d{1,6}\] )?"
)
# The program's own word that it is done, at the beginning of a line.
_DONE = tuple(
    note(
        "end",
        literal,
        rf"(?i)^{_LOGGED}\W{{0,8}}(?:\[[^]]{{1,40}}\]\W{{0,4}})?"
        r"(?:(?:all |the |model )?(?:pre-?|fine-?)?(?:train(?:ing)?|tuning|run)"
        r"(?: (?:run|loop|process|job))?(?: (?:has|is|was))?(?: been)?(?: successfully)? (?:finished|completed?|done)\b"
        r"|(?:finished|completed|done)(?: with)? (?:the )?(?:pre-?|fine-?)?(?:training|tuning)\b)(?!.{0,80}\bepoch)",
    )
    for literal in ("inished", "INISHED", "omplete", "OMPLETE", "one", "ONE")
)
Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A spelling that was guessed: as a family of text, as `renamed` keys of rows, and as `told` to people."""

    family: Family
    told: str
    renamed: Mapping[str, str] = field(default_factory=dict)


def guess_from_lines(lines: Iterable[str]) -> Guess | None:
    """The spelling of a text; None where it has no steps, or these are not regular."""
    found: list[tuple[str, list[Pair]]] = []
    for raw in lines:
        if "loss" not in raw.lower():
            continue
        for line in split_line(without_codes(raw)):
            text = line.lstrip("\r")[:LONGEST]
            text = text[read_prefix(text).length :]
            if _IS_LOSS.search(text):
                found.append((text, _pairs(text)))
        if len(found) >= MOST_LINES:
            break
    chosen = _choose([pairs for _, pairs in found])
    if chosen is None:
        return None
    step, fields = chosen
    used = [(text, dict(pairs)) for text, pairs in found if {step, *fields} <= {key for key, _ in pairs}]
    epoch = _epoch_of(step, [pairs for _, pairs in used])
    return Guess(family=_family(step, fields, epoch), told=_told(step, fields, used[0][0], epoch))


def guess_from_rows(rows: Iterable[Row]) -> Guess | None:
    """The spelling of the rows of a metrics file, whose keys no table has; None where no key is a step's."""
    found: list[list[Pair]] = []
    example = ""
    for row in rows:
        pairs = [(str(key), str(value)) for key, value in row.items() if number(value) is not None]
        found.append(pairs)
        example = example or ", ".join(f"{key}: {value}" for key, value in pairs)
        if len(found) >= MOST_LINES:
            break
    chosen = _choose(found)
    if chosen is None:
        return None
    step, fields = chosen
    renamed = {step: "step", **{key: _AS_KEY[each.name, each.per] for key, each in fields.items()}}
    return Guess(family=Family(name=NAME, counted_from=1), told=_told(step, fields, example), renamed=renamed)


# How the table of the keys of metrics files calls a field.
_AS_KEY = {
    ("loss", 1.0): "loss", ("seconds", 1.0): "seconds", ("seconds", 1000): "milliseconds",
    ("learning_rate", 1.0): "learning_rate", ("grad_norm", 1.0): "grad_norm", ("mfu", 1.0): "mfu",
    ("mfu", 100): "mfu_percent",
}  # fmt: skip


def _pairs(text: str) -> list[Pair]:
    found = [(pair[1], pair[2]) for pair in PAIR.finditer(text)]
    bare = _BARE.search(text)
    return [(BARE, bare[1]), *found] if bare else found


def _choose(lines: Sequence[Sequence[Pair]]) -> tuple[str, dict[str, Field]] | None:
    """The key of the step, and the fields of the others by their keys."""
    by_key = [dict(pairs) for pairs in lines]
    keys = Counter(key for pairs in by_key for key in pairs)
    losses = [key for key in keys if keys[key] >= FEWEST and _is_called_loss(key.replace("_", " "))]
    for loss in sorted(losses, key=lambda key: (_place(key, _LOSS_WORDS), -keys[key])):
        own = [pairs for pairs in by_key if loss in pairs]
        if _is_loss([pairs[loss] for pairs in own]) and (found := _beside(loss, own)):
            return found
    return None


def _is_called_loss(name: str) -> bool:
    return _IS_LOSS.search(name) is not None and not _NOT_TRAINED.search(name)


def _beside(loss: str, lines: Sequence[Mapping[str, str]]) -> tuple[str, dict[str, Field]] | None:
    """What `_choose` looks for, in the lines with this loss; None where there is no step."""
    counts = Counter(key for pairs in lines for key in pairs)
    usual = [key for key, count in counts.items() if count >= USUAL * len(lines) and key != loss]
    numbers = [key for key in usual if _is_step(key, lines)]
    steps = [key for key in numbers if not _NO_STEP.search(key)] or [key for key in numbers if plain(key) == "epoch"]
    if not steps:
        return None
    step = min(steps, key=lambda key: _place(key, _STEP_WORDS))
    numbers_of = [int(_digits(pairs[step])) for pairs in lines if step in pairs]
    stride = _stride(numbers_of, in_epochs=bool(_epoch_of(step, lines)))
    fields = {loss: Field(name="loss")}
    for key in usual:
        figure = None if key == step else _figure(key, lines, stride)
        if figure and all(figure.name != other.name for other in fields.values()):
            fields[key] = figure
    return step, fields


def _place(key: str, words: Sequence[str]) -> int:
    """How early in the list a key is, or else the last of its words; what is not there comes last."""
    name = plain(key)
    end = re.split(r"[_/ ]", name)[-1]
    return next((n for n, word in enumerate(words) if word in (name, end)), len(words))


def _epoch_of(step: str, lines: Sequence[Mapping[str, str]]) -> str:
    """The key of the epoch in which these steps are counted; "" if they are those of the run."""
    rows = [pairs for pairs in lines if step in pairs]
    for key in dict.fromkeys(key for pairs in rows for key in pairs if plain(key) == "epoch" != plain(step)):
        texts = [(_digits(pairs.get(key, "")), _digits(pairs[step])) for pairs in rows]
        if not all(epoch.isdecimal() and number.isdecimal() for epoch, number in texts):
            continue
        counts = [(int(epoch), int(number)) for epoch, number in texts]
        back = [before[0] < after[0] for before, after in pairwise(counts) if after[1] < before[1]]
        if back and all(back):
            return key
    return ""


def _digits(text: str) -> str:
    return text.replace(",", "")


def _is_loss(texts: Sequence[str]) -> bool:
    """True if these may be losses: numbers, most of which have a fraction, or are none (nan)."""
    broken = sum(1 for text in texts if "." in text or re.search("nan|inf|e-", text, re.IGNORECASE))
    return broken >= USUAL * len(texts) and not any("%" in text for text in texts)


def _is_step(key: str, lines: Sequence[Mapping[str, str]]) -> bool:
    texts = [_digits(pairs[key]) for pairs in lines if key in pairs]
    if not all(text.isdecimal() and len(text) < 13 for text in texts):
        return False
    return bool(_stride([int(text) for text in texts], in_epochs=bool(_epoch_of(key, lines))))


def _stride(steps: Sequence[int], *, in_epochs: bool = False) -> int:
    """By how much the step grows from line to line; 0 where it does not always, but for copies and new beginnings.

    `in_epochs`: with each epoch, it begins again.
    """
    gaps = [after - before for before, after in pairwise(steps) if after != before]
    gaps = [gap for gap in gaps if gap > 0] if in_epochs else gaps
    if len(gaps) < FEWEST - 1:
        return 0
    stride, count = Counter(gaps).most_common(1)[0]
    return stride if stride > 0 and count >= REGULAR * len(gaps) - 1 else 0


def _figure(key: str, lines: Sequence[Mapping[str, str]], stride: int) -> Field | None:
    """The field of another key; a time only with its unit, and in a log of every n-th step only if it is of a step."""
    known = _FIGURES.get(plain(key))
    if known is not None:
        is_percent = known.name == "mfu" and any((number(pairs[key]) or 0.0) > 1 for pairs in lines if key in pairs)
        return replace(known, per=100) if is_percent else known
    units = {found[1] if (found := _SECONDS.search(pairs[key])) else "" for pairs in lines if key in pairs}
    if len(units) != 1 or "" in units or not _OF_A_STEP.search(key.replace("_", " ")):
        return None
    is_of_a_step = stride == 1 or re.search(r"step|iter|(?<![a-z])it(?![a-z])", key, re.IGNORECASE)
    if not is_of_a_step or _accumulates([number(pairs[key]) or 0.0 for pairs in lines if key in pairs]):
        return None
    return Field(name="seconds")  # its unit is read with the number


def _accumulates(values: Sequence[float]) -> bool:
    """True if these are times since the start, not of a step."""
    grows = sum(1 for before, after in pairwise(values) if after >= before)
    return len(values) >= FEWEST and grows >= REGULAR * (len(values) - 1) and values[-1] > 1.5 * values[0]


def _family(step: str, fields: Mapping[str, Field], epoch: str) -> Family:
    loss = next(key for key, of in fields.items() if of.name == "loss")
    objective = "policy" if _OF_A_POLICY.search(loss.replace("_", " ")) else ""
    total = r"(?:/(?P<total>\d{1,9}))?"
    if step == BARE:
        number_of = r"(?i:(?<!epoch)(?<!epoch[: ]))[\[(](?P<step>\d{1,9})/(?P<total>\d{1,9})[\])]"
        anchors: tuple[str, ...] = ("/", loss)
    else:
        number_of = (
            rf"(?<![\w.]){re.escape(step)}['\"]?(?: ?[:=] ?|\s{{1,8}}|: {{1,8}})['\"]?[\[(]?(?P<step>\d[\d,]*){total}"
        )
        anchors = (step, loss)
    if epoch:
        own = rf"(?<![\w.]){re.escape(epoch)}['\"]?(?: ?[:=] ?|\s{{1,8}}|: {{1,8}})['\"]?[\[(]?(?P<epoch>\d{{1,9}}){total}"
        read = partial(EpochSteps, re.compile(number_of), re.compile(own), PAIR, fields)
        return Family(
            name=NAME, counted_from=1, custom_reader=read, custom_words=(loss,), notes=_DONE, objective=objective
        )
    return Family(
        name=NAME,
        anchors=anchors,
        head=re.compile(rf"\A(?=.{{0,{LONGEST}}}?{number_of}(?!\.\d))"),
        pair=PAIR,
        whole=re.compile(
            rf"(?<![\w.]){re.escape(loss)}['\"]?(?: ?[:=] ?|\s{{1,8}}|: {{1,8}})['\"]?[\[(]?(?i:{NUMBER})(?!\.?{CUT})"
        ),
        fields=fields,
        counted_from=1,
        notes=_DONE,
        objective=objective,
    )


def _told(step: str, fields: Mapping[str, Field], example: str, epoch: str = "") -> str:
    names = {
        "loss": "loss",
        "seconds": "step time",
        "grad_norm": "gradient norm",
        "learning_rate": "learning rate",
        "mfu": "MFU",
    }
    said = ", ".join(f"{key!r} for the {names.get(of.name, of.name)}" for key, of in fields.items())
    shown: Any = example.strip()
    inside = f" in {epoch!r}" if epoch else ""
    return f"guessed: {step!r} for the step{inside}, {said}; in: {shown[:MOST_SHOWN]}{'…' if len(shown) > MOST_SHOWN else ''}"
