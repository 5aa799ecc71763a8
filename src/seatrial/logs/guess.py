"""Guesses how a log is spelled whose trainer nobody knows: which number is the step, which the loss, which the time.

Only what is the same throughout the file counts. The step is a whole number that grows by the same amount from line to
line; the loss is what is called so; a time needs a unit, and must not be the time since the start. Where no line has a
step, that of an epoch will do. A guess is a family like any other, and says of itself how it came about.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from seatrial.logs.epoch_steps import WORDS as EPOCH_WORDS
from seatrial.logs.epoch_steps import EpochSteps
from seatrial.logs.grammar import Family, Field, ReadLine, note
from seatrial.logs.guess_readers import CountedLines, EvalSteps
from seatrial.logs.lines import read_prefix, split_line, without_codes
from seatrial.logs.metric_keys import Row, number, plain
from seatrial.logs.numbers import CUT, NUMBER
from seatrial.logs.progress_bars import BarSteps, bar_in

NAME = "generic"
FEWEST = 4  # steps: three times the same distance
FEWEST_COUNTED = 20  # lines without a step
REGULAR = 0.9  # of the distances between steps
USUAL = 0.9  # of the lines of steps, in which a figure stands
MOST_OF_AN_EPOCH = 3  # lines, that are still one a repeat or a rank
MOST_LINES, LONGEST = 5000, 2000  # lines that are looked at; characters of one
MOST_SHOWN = 160  # characters of the example

# Of "loss nan dt 1.5", nan is a value, and no word of the next key.
_WORD = r"(?!(?:nan|inf(?:inity)?)(?![\w/.]))[A-Za-z_][\w/.]*"
_KEY = rf"{_WORD}(?:[ -]{_WORD}){{0,3}}(?: ?\([^()\d]{{1,12}}\))?"
_UNIT = r"(?: ?(?:ms|sec(?:onds)?|s)(?![\w/])|%)?"
# A key, and the number behind it; of "[10/100]" and "10/100", a step and the total.
_PAIR_TEXT = rf"(?<![\w.])({_KEY})['\"]?(?: ?[:=] ?| {{1,8}}|\t|: {{1,8}})['\"]?[\[(]?({NUMBER}{_UNIT})(?!\.?{CUT})"
PAIR = re.compile(_PAIR_TEXT, re.IGNORECASE)
# "[ 10/100]" and "00010/00100, ".
_BARE_BEGINS = r"(?i:(?<!epoch)(?<!epoch[: ]))(?:[\[(] {0,8}|(?:\A|(?<=[ |]))(?=\d{1,9}/\d{1,9}[,:;|]))"
_BARE_ENDS = r"(?:[\])]|(?=[,:;|]))"
_BARE = re.compile(rf"{_BARE_BEGINS}(\d{{1,9}})/(\d{{1,9}}){_BARE_ENDS}")
BARE = "[n/m]"  # stands in for the key of a step that has none

_IS_LOSS = re.compile(r"(?<![a-z])loss(?![a-z])", re.IGNORECASE)
_NOT_TRAINED = re.compile(r"(?<![a-z])(?:eval|val|valid|validation|test|aux|scale|scaling|best|min|z)(?![a-z])", re.I)
_OF_A_POLICY = re.compile(r"(?<![a-z])(?:act|actor|policy|pg|ppo|grpo|dapo|rloo|rl|surrogate)(?![a-z])", re.I)
_REWARDED = re.compile(r"(?<![a-z])(?:rewards?|advantages?|rollouts?)(?![a-z])", re.I)
_COMPARED = re.compile(r"(?<![a-z])(?:chosen|rejected|margins?|preferred|preference|acc|accuracy)(?![a-z])", re.I)
_STEP_WORDS = ("global_step", "step", "iteration", "iter", "update", "it")
_LOSS_WORDS = ("loss", "train_loss", "train/loss", "training_loss", "lm_loss", "ce_loss")
_NO_STEP = re.compile(
    r"epoch|rank|gpu|node|worker|loss|size|port|pid|seed|lr|batch_?size|tokens|samples|layer|time|elapsed|sec|eta|mem",
    re.I,
)
_IS_EPOCH = re.compile(r"(?<![a-z])epoch(?![a-z])", re.IGNORECASE)
_IS_EVALUATED = re.compile(r"(?i)(?<![a-z])(?:eval|val|valid|validation|dev)(?: [a-z]+)? loss(?![a-z])")
# The beginning of a line of something else than the training.
_OF_A_TEST = re.compile(r"(?i:\W{0,3}(?:test(?:ing)?|eval(?:uation|uating)?|val(?:id(?:ation|ating)?)?)(?![a-z]))")
_ENDS_IN_LOSS = re.compile(r"(?<![a-z])loss(?: \([^)]*\))?$", re.IGNORECASE)  # "kl_loss_coef" is none
_BROKEN = re.compile("nan|inf", re.IGNORECASE)
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
_STEP_OF = r"\b(?:step|iter(?:ation)?)s?[ _=:#-]{0,3}(?P<step>[1-9]\d{0,11})\b"
# A run that goes on from a checkpoint, maybe of a step that is not named.
_RESUMED = (
    *(
        note("checkpoint", literal,
             r"(?i)\b(?:resum(?:ed|ing)|continuing)(?: (?!download)[a-z]+){0,3} (?:from|at)\b"
             rf"(?:.{{0,200}}?{_STEP_OF})?", action="restore")
        for literal in ("esum", "ontinuing ")
    ),
    *(
        note("checkpoint", literal, rf"(?i)\b(?:load|restor)(?:ed|ing)\b.{{0,200}}?\bcheckpoint\b.{{0,200}}?{_STEP_OF}",
             action="restore")
        for literal in ("oaded ", "oading ", "estored ", "estoring ")
    ),
)  # fmt: skip
# DeepSpeed-Chat's third stage, whose lines of steps are its own.
_PLANNED = note("facts", "Total Gen", r"Beginning of Epoch 1/1, Total Generation Batches (?P<planned_steps>\d{1,12})\b")
# How many there will be, on a line of its own or behind a logger's words, by what the steps are called.
_WILL_BE = {
    unit: note("facts", literal, rf"(?i)(?:^|[-:\]|] ?)(?:max(?:imum|\.)?|total|number of)(?: training)? {words}"
               r"(?: for training)? ?[:=] ?(?P<planned_steps>\d{1,9})\s*$")
    for unit, literal, words in (("epoch", "pochs", "epochs"), ("step", "teps", "steps"))
}  # fmt: skip
Pair = tuple[str, str]
Said = tuple[str, list[Pair]]  # a line, and what it says


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A spelling that was guessed: as a family of text, as `renamed` keys of rows, and as `told` to people."""

    family: Family
    told: str
    renamed: Mapping[str, str] = field(default_factory=dict)


def guess_from_lines(lines: Iterable[str], *, alone: bool = True) -> Guess | None:
    """The spelling of a text; None where it has no steps, or these are not regular.

    `alone`: nothing else in it tells of steps, so that evaluations will do, or lines that can only be counted.
    """
    found = _lines_with_a_loss(lines)
    trained = [each for each in found if not _OF_A_TEST.match(each[0])]
    guess = _by_steps(trained) or _by_bars(trained)
    return guess or ((_by_evaluations(found) or _by_count(trained)) if alone else None)


def _lines_with_a_loss(lines: Iterable[str]) -> list[Said]:
    found: list[Said] = []
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
    return found


def _by_steps(found: Sequence[Said]) -> Guess | None:
    """Lines with a step and a loss, the usual case."""
    chosen = _choose([pairs for _, pairs in found])
    if chosen is None:
        return None
    step, fields = chosen
    used = [(text, dict(pairs)) for text, pairs in found if {step, *fields} <= {key for key, _ in pairs}]
    epoch = _epoch_of(step, [pairs for _, pairs in used])
    objective = _objective(_loss_of(fields), [pairs for _, pairs in used])
    return Guess(family=_family(step, fields, epoch, objective), told=_told(step, fields, used[0][0], epoch))


def _by_bars(found: Sequence[Said]) -> Guess | None:
    """Progress bars with the loss beside their count; all of the training, not those of an evaluation."""
    drawn = [(text, at) for text, _ in found if (at := bar_in(text)) and not _NOT_TRAINED.search(at.name)]
    said = [{key: text for part in at.texts for key, text in PAIR.findall(part)} for _, at in drawn]
    loss = _usual_loss(said)
    own = [each for each, pairs in zip(drawn, said, strict=True) if loss in pairs]
    if not loss or len({(at.name, at.total) for _, at in own}) > 1:
        return None  # they count different things, or those of an evaluation are called the same
    restarts = any(after.n < before.n and after.epoch == before.epoch for (_, before), (_, after) in pairwise(own))
    fields = {loss: Field(name="loss")}
    read = partial(BarSteps, PAIR, fields, name=own[0][1].name, restarts=restarts)
    words = ("%|", *(note.literal for note in _DONE))
    family = _of_reader(read, objective=_objective(loss, said), words=words)
    return Guess(family=family, told=_told("n/m of the progress bar", fields, own[0][0]))


def _by_evaluations(found: Sequence[Said]) -> Guess | None:
    """Lines with a step or an epoch and the loss of an evaluation, of a program that prints no other."""
    by_key = [dict(pairs) for _, pairs in found]
    counts = Counter(key for pairs in by_key for key in pairs)
    texts = (text for pairs in by_key for key, text in pairs.items() if _is_called_loss(key.replace("_", " ")))
    if any(map(_BROKEN.search, texts)):
        return None  # the training prints its loss after all
    for loss in sorted(key for key in counts if counts[key] >= FEWEST and _IS_EVALUATED.search(key.replace("_", " "))):
        own = [pairs for pairs in by_key if loss in pairs]
        if not _is_loss([pairs[loss] for pairs in own]) or not (chosen := _beside(loss, own)):
            continue
        step, fields = chosen[0], {loss: Field(name="loss")}
        read = partial(EvalSteps, re.compile(_number_of(step)), PAIR, fields)
        family = replace(_of_reader(read, objective="", words=(loss,)), loss_optional=True)
        example = next(text for (text, _), pairs in zip(found, by_key, strict=True) if {step, loss} <= pairs.keys())
        told = _told(step, fields, example).replace("for the loss", "for the loss of an evaluation")
        return Guess(family=family, told=told)
    return None


def _by_count(found: Sequence[Said]) -> Guess | None:
    """Lines with a loss and no step at all, which can only be counted; all of them look alike."""
    loss = _usual_loss([dict(pairs) for _, pairs in found])
    lines = [(text, dict(pairs)) for text, pairs in found if loss in dict(pairs)]
    kinds = Counter(tuple(pairs) for _, pairs in lines)
    alike = kinds.most_common(1)[0][1] if kinds else 0
    if alike < max(FEWEST_COUNTED, USUAL * len(lines)) or not _ENDS_IN_LOSS.search(loss):
        return None
    if any(_is_called_step(key) and plain(key) != "epoch" for _, pairs in lines for key in pairs):
        return None  # of which it is not known how they are counted
    fields = {loss: Field(name="loss")}
    for key in lines[0][1]:
        known = _FIGURES.get(plain(key))
        if known and known.name in ("grad_norm", "learning_rate"):
            fields[key] = known
    objective = _objective(loss, [pairs for _, pairs in lines])
    family = _of_reader(partial(CountedLines, PAIR, fields), objective=objective, words=(loss,))
    return Guess(family=family, told=_told("", fields, lines[0][0]))


def _usual_loss(lines: Sequence[Mapping[str, str]]) -> str:
    """The key of the loss that most of these have; "" where there are too few, or it looks like none."""
    counts = Counter(key for pairs in lines for key in pairs if _is_called_loss(key.replace("_", " ")))
    for loss in sorted(counts, key=lambda key: (-counts[key], _place(key, _LOSS_WORDS))):
        if counts[loss] >= FEWEST and _is_loss([pairs[loss] for pairs in lines if loss in pairs]):
            return loss
    return ""


def _of_reader(read: Callable[[], ReadLine], *, objective: str, words: tuple[str, ...]) -> Family:
    notes = (*_DONE, *_RESUMED, _PLANNED)
    return Family(name=NAME, counted_from=1, custom_reader=read, custom_words=words, notes=notes, objective=objective)


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
    by_key = [dict(pairs) for pairs in found]
    loss = _loss_of(fields)
    objective = _objective(loss, [pairs for pairs in by_key if loss in pairs])
    renamed = {step: "step", **{key: _AS_KEY[each.name, each.per] for key, each in fields.items()}}
    family = Family(name=NAME, counted_from=1, objective=objective)
    return Guess(family=family, told=_told(step, fields, example), renamed=renamed)


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
        if not _is_loss([pairs[loss] for pairs in own]):
            continue
        if found := _beside(loss, own):
            return found
        # Lines of something else, such as the summary of an epoch, may call their loss the same.
        for step in (BARE, *(key for key in keys if plain(key) == "epoch")):
            some = [pairs for pairs in own if step in pairs]
            if FEWEST <= len(some) < USUAL * len(own) and (found := _beside(loss, some)) and found[0] == step:
                return found
    return None


def _is_called_step(key: str) -> bool:
    return key == BARE or re.split(r"[_/ ]", plain(key))[-1] in (*_STEP_WORDS, "steps", "epoch")


def _is_called_loss(name: str) -> bool:
    return _IS_LOSS.search(name) is not None and not _NOT_TRAINED.search(name)


def _beside(loss: str, lines: Sequence[Mapping[str, str]]) -> tuple[str, dict[str, Field]] | None:
    """What `_choose` looks for, in the lines with this loss; None where there is no step."""
    counts = Counter(key for pairs in lines for key in pairs)
    usual = [key for key, count in counts.items() if count >= USUAL * len(lines) and key != loss]
    numbers = [key for key in usual if _is_step(key, lines)]
    steps = [key for key in numbers if not _NO_STEP.search(key)] or _epochs_of_a_line(numbers, lines)
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


def _epochs_of_a_line(numbers: Iterable[str], lines: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys of epochs of which each has a line of its own, or hardly more."""
    epochs = (key for key in numbers if _IS_EPOCH.search(key) and not _NO_STEP.search(_IS_EPOCH.sub("", key)))
    return [key for key in epochs if len({pairs.get(key) for pairs in lines}) > len(lines) / MOST_OF_AN_EPOCH]


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


def _loss_of(fields: Mapping[str, Field]) -> str:
    return next(key for key, of in fields.items() if of.name == "loss")


def _family(step: str, fields: Mapping[str, Field], epoch: str, objective: str) -> Family:
    loss = _loss_of(fields)
    number_of = _number_of(step)
    anchors = ("/", loss) if step == BARE else (step, loss)
    if epoch:
        own = rf"(?<![\w.]){re.escape(epoch)}{_BETWEEN}(?P<epoch>\d{{1,9}}){_TOTAL}"
        read = partial(EpochSteps, re.compile(number_of), re.compile(own), PAIR, fields)
        return _of_reader(read, objective=objective, words=(loss, *EPOCH_WORDS))
    return Family(
        name=NAME,
        anchors=anchors,
        head=re.compile(rf"\A(?!{_OF_A_TEST.pattern})(?=.{{0,{LONGEST}}}?{number_of}(?!\.\d))"),
        pair=PAIR,
        whole=re.compile(rf"(?<![\w.]){re.escape(loss)}{_BETWEEN}(?i:{NUMBER})(?!\.?{CUT})"),
        fields=fields,
        counted_from=1,
        notes=(*_DONE, *_RESUMED, _PLANNED, *([of_unit] if (of_unit := _WILL_BE.get(plain(step))) else ())),
        objective=objective,
    )


_BETWEEN = r"['\"]?(?: ?[:=] ?|\s{1,8}|: {1,8})['\"]?[\[(]?"  # a key and its number
_TOTAL = r"(?:/(?P<total>\d{1,9}))?"


def _number_of(step: str) -> str:
    """The pattern of the number of a step, with the total that may stand behind it."""
    if step == BARE:
        # Ten million and the like stand for no end at all.
        return rf"{_BARE_BEGINS}(?P<step>\d{{1,9}})/(?:10{{7,9}}|(?P<total>\d{{1,9}})){_BARE_ENDS}"
    return rf"(?<![\w.]){re.escape(step)}{_BETWEEN}(?P<step>\d[\d,]*){_TOTAL}"


def _objective(loss: str, lines: Sequence[Mapping[str, str]]) -> str:
    """The objective of a loss: a policy's by its name, or by the rewards beside it if it is ever negative.

    Not by those of two answers that DPO and a reward model compare: their losses have to fall.
    """
    if _OF_A_POLICY.search(loss.replace("_", " ")):
        return "policy"
    counts = Counter(key.replace("_", " ") for pairs in lines for key in pairs)
    usual = [key for key, count in counts.items() if count >= USUAL * len(lines) and not _IS_LOSS.search(key)]
    rewarded = any(_REWARDED.search(key) for key in usual)
    compared = any(map(_COMPARED.search, counts))
    return "policy" if rewarded and not compared and any(pairs[loss].startswith("-") for pairs in lines) else ""


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
    of_step = f"{step!r} for the step{inside}" if step else "no step, so that lines are counted"
    shown = shown[:MOST_SHOWN] + ("…" if len(shown) > MOST_SHOWN else "")
    return f"guessed: {of_step}, {said}; in: {shown}"
