"""Guesses how a log is spelled whose trainer nobody knows: which number is the step, which the loss, which the time.

`guess_keys` chooses among what the lines say. A guess is a family like any other, and says of itself how it came about.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise

from seatrial.logs import guess_keys as keys
from seatrial.logs.epoch_steps import EPOCH_WORDS, EpochSteps
from seatrial.logs.grammar import Family, Field, ReadLine, note
from seatrial.logs.guess_readers import CountedLines, EvalSteps
from seatrial.logs.lines import read_prefix, split_line, without_codes
from seatrial.logs.metric_keys import Row, name_of, number, plain
from seatrial.logs.numbers import CUT, NUMBER
from seatrial.logs.progress_bars import BarSteps, bar_in

NAME = "generic"
FEWEST_COUNTED = 20  # lines without a step
MOST_LINES, LONGEST = 5000, 2000  # lines that are looked at; characters of one
MOST_SHOWN = 160  # characters of the example

_OF_A_POLICY = re.compile(r"(?<![a-z])(?:act|actor|policy|pg|ppo|grpo|dapo|rloo|rl|surrogate)(?![a-z])", re.I)
_REWARDED = re.compile(r"(?<![a-z])(?:rewards?|advantages?|rollouts?)(?![a-z])", re.I)
_COMPARED = re.compile(r"(?<![a-z])(?:chosen|rejected|margins?|preferred|preference|acc|accuracy)(?![a-z])", re.I)
_IS_EVALUATED = re.compile(r"(?i)(?<![a-z])(?:eval|val|valid|validation|dev)(?:[ _][a-z]+)?[ _]loss(?![a-z])")
# The beginning of a line of something else than the training.
_OF_A_TEST = re.compile(r"(?i:\W{0,3}(?:test(?:ing)?|eval(?:uation|uating)?|val(?:id(?:ation|ating)?)?)(?![a-z]))")
_ENDS_IN_LOSS = re.compile(r"(?<![a-z])loss(?: \([^)]*\))?$", re.IGNORECASE)  # "kl_loss_coef" is none
_BROKEN = re.compile("nan|inf", re.IGNORECASE)
# What a logger puts before a line: the time, the level, and maybe where in the program it is from.
_LOGGED = (
    r"(?:[^\n]{0,100}?\b(?-i:INFO|SUCCESS|NOTICE|LOGS?)\b[\s|:\]-]{1,12}"
    r"(?:[\[(]?[\w.<>/]{1,60}(?::[\w.<>]{1,60}){0,2}[\])]?(?:\s*[|:-]\s*|\]\s*)){0,2}"
    r"|[IN]\d{4} [\d:.]{8,18} {1,8}\d{1,9} [\w./]{1,60}:\d{1,6}\] )?"
)


def _without(words: Iterable[str]) -> str:
    """A pattern that a line does not match in which one of these words stands."""
    return f"(?-i:{''.join(f'(?!.*{word})' for word in words)})"


# The program's own word that it is done, at the beginning of a line; of several words in it, the first here counts.
_WORDS_OF_END = ("inished", "INISHED", "omplete", "OMPLETE", "one", "ONE")
_DONE = tuple(
    note(
        "end",
        literal,
        rf"(?i)^{_without(_WORDS_OF_END[:position])}{_LOGGED}\W{{0,8}}(?:\[[^]]{{1,40}}\]\W{{0,4}})?"
        r"(?:(?:all |the |model )?(?:pre-?|fine-?)?(?:train(?:ing)?|tuning|run)"
        r"(?: (?:run|loop|process|job))?(?: (?:has|is|was))?(?: been)?(?: successfully)? (?:finished|completed?|done)\b"
        r"|(?:finished|completed|done)(?: with)? (?:the )?(?:pre-?|fine-?)?(?:training|tuning)\b)(?!.{0,80}\bepoch)",
    )
    for position, literal in enumerate(_WORDS_OF_END)
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
_NOTES = (*_DONE, *_RESUMED, _PLANNED)
# How many there will be, on a line of its own or behind a logger's words, by what the steps are called.
_WILL_BE = {
    unit: note("facts", literal, rf"(?i)(?:^|[-:\]|] ?)(?:max(?:imum|\.)?|total|number of)(?: training)? {words}"
               r"(?: for training)? ?[:=] ?(?P<planned_steps>\d{1,9})\s*$")
    for unit, literal, words in (("epoch", "pochs", "epochs"), ("step", "teps", "steps"))
}  # fmt: skip
Said = tuple[str, list[keys.Pair]]  # a line, and what it says


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
            if keys.IS_LOSS.search(text):
                found.append((text, keys.pairs_in(text)))
        if len(found) >= MOST_LINES:
            break
    return found


def _by_steps(found: Sequence[Said]) -> Guess | None:
    """Lines with a step and a loss, the usual case."""
    chosen = keys.choose([pairs for _, pairs in found])
    if chosen is None:
        return None
    step, fields = chosen
    used = [(text, dict(pairs)) for text, pairs in found if {step, *fields} <= {key for key, _ in pairs}]
    rows = [pairs for _, pairs in used]
    epoch, objective = keys.epoch_of(step, rows), _objective(_loss_of(fields), rows)
    return Guess(family=_family(step, fields, epoch, objective), told=_told(step, fields, used[0][0], epoch))


def _by_bars(found: Sequence[Said]) -> Guess | None:
    """Progress bars with the loss beside their count; all of the training, not those of an evaluation."""
    drawn = [(text, at) for text, _ in found if (at := bar_in(text)) and not keys.NOT_TRAINED.search(at.name)]
    said = [dict(at.pairs) for _, at in drawn]
    loss = keys.usual_loss(said)
    own = [each for each, pairs in zip(drawn, said, strict=True) if loss in pairs]
    if not loss or len({(at.name, at.total) for _, at in own}) > 1:
        return None  # they count different things, or those of an evaluation are called the same
    restarts = any(after.n < before.n and after.epoch == before.epoch for (_, before), (_, after) in pairwise(own))
    fields = {loss: Field(name="loss")}
    read = partial(BarSteps, fields, name=own[0][1].name, restarts=restarts)
    words = ("%|", *(note.literal for note in _DONE))
    family = _of_reader(read, objective=_objective(loss, said), words=words)
    return Guess(family=family, told=_told("n/m of the progress bar", fields, own[0][0]))


def _by_evaluations(found: Sequence[Said]) -> Guess | None:
    """Lines with a step or an epoch and the loss of an evaluation, of a program that prints no other."""
    by_key = [dict(pairs) for _, pairs in found]
    counts = Counter(chain.from_iterable(by_key))
    texts = (text for pairs in by_key for key, text in pairs.items() if keys.is_called_loss(key))
    if any(map(_BROKEN.search, texts)):
        return None  # the training prints its loss after all
    for loss in sorted(key for key in counts if counts[key] >= keys.FEWEST and _IS_EVALUATED.search(key)):
        own = [pairs for pairs in by_key if loss in pairs]
        if not keys.is_loss([pairs[loss] for pairs in own]) or not (chosen := keys.beside(loss, own)):
            continue
        step, fields = chosen[0], {loss: Field(name="loss")}
        read = partial(EvalSteps, re.compile(keys.number_of(step)), fields)
        family = replace(_of_reader(read, objective="", words=(loss,)), loss_optional=True)
        example = next(text for (text, _), pairs in zip(found, by_key, strict=True) if {step, loss} <= pairs.keys())
        told = _told(step, fields, example).replace("for the loss", "for the loss of an evaluation")
        return Guess(family=family, told=told)
    return None


def _by_count(found: Sequence[Said]) -> Guess | None:
    """Lines with a loss and no step at all, which can only be counted; all of them look alike."""
    loss = keys.usual_loss([dict(pairs) for _, pairs in found])
    lines = [(text, dict(pairs)) for text, pairs in found if loss in dict(pairs)]
    kinds = Counter(tuple(pairs) for _, pairs in lines)
    alike = kinds.most_common(1)[0][1] if kinds else 0
    if alike < max(FEWEST_COUNTED, keys.USUAL * len(lines)) or not _ENDS_IN_LOSS.search(loss):
        return None
    if any(keys.is_called_step(key) and plain(key) != "epoch" for _, pairs in lines for key in pairs):
        return None  # of which it is not known how they are counted
    figures = ((key, keys.FIGURES.get(plain(key))) for key in lines[0][1])
    known = {key: of for key, of in figures if of and of.name in ("grad_norm", "learning_rate")}
    fields = {loss: Field(name="loss"), **known}
    objective = _objective(loss, [pairs for _, pairs in lines])
    family = _of_reader(partial(CountedLines, fields), objective=objective, words=(loss,))
    return Guess(family=family, told=_told("", fields, lines[0][0]))


def _of_reader(read: Callable[[], ReadLine], *, objective: str, words: tuple[str, ...]) -> Family:
    return Family(name=NAME, counted_from=1, custom_reader=read, custom_words=words, notes=_NOTES, objective=objective)


def guess_from_rows(rows: Iterable[Row]) -> Guess | None:
    """The spelling of the rows of a metrics file, whose keys no table has; None where no key is a step's."""
    found: list[list[keys.Pair]] = []
    example = ""
    for row in rows:
        pairs = [(str(key), str(value)) for key, value in row.items() if number(value) is not None]
        found.append(pairs)
        example = example or ", ".join(f"{key}: {value}" for key, value in pairs)
        if len(found) >= MOST_LINES:
            break
    chosen = keys.choose(found)
    if chosen is None:
        return None
    step, fields = chosen
    by_key = [dict(pairs) for pairs in found]
    loss = _loss_of(fields)
    objective = _objective(loss, [pairs for pairs in by_key if loss in pairs])
    renamed = {step: "step", **{key: name_of(each) for key, each in fields.items()}}
    family = Family(name=NAME, counted_from=1, objective=objective)
    return Guess(family=family, told=_told(step, fields, example), renamed=renamed)


def _loss_of(fields: Mapping[str, Field]) -> str:
    return next(key for key, of in fields.items() if of.name == "loss")


def _family(step: str, fields: Mapping[str, Field], epoch: str, objective: str) -> Family:
    loss = _loss_of(fields)
    of_step = keys.number_of(step)
    anchors = ("/", loss) if step == keys.BARE else (step, loss)
    if epoch:
        own = rf"(?<![\w.]){re.escape(epoch)}{keys.BETWEEN}(?P<epoch>\d{{1,9}}){keys.TOTAL}"
        read = partial(EpochSteps, re.compile(of_step), re.compile(own), fields)
        return _of_reader(read, objective=objective, words=(loss, *EPOCH_WORDS))
    return Family(
        name=NAME,
        anchors=anchors,
        head=re.compile(rf"\A(?!{_OF_A_TEST.pattern})(?=.{{0,{LONGEST}}}?{of_step}(?!\.\d))"),
        pair=keys.PAIR,
        whole=re.compile(rf"(?<![\w.]){re.escape(loss)}{keys.BETWEEN}(?i:{NUMBER})(?!\.?{CUT})"),
        fields=fields,
        counted_from=1,
        notes=(*_NOTES, *([of_unit] if (of_unit := _WILL_BE.get(plain(step))) else ())),
        objective=objective,
    )


def _objective(loss: str, lines: Sequence[Mapping[str, str]]) -> str:
    """The objective of a loss: a policy's by its name, or by the rewards beside it if it is ever negative.

    Not by those of two answers that DPO and a reward model compare: their losses have to fall.
    """
    if _OF_A_POLICY.search(loss):
        return "policy"
    counts = Counter(chain.from_iterable(lines))
    usual = [key for key, count in counts.items() if count >= keys.USUAL * len(lines) and not keys.IS_LOSS.search(key)]
    rewarded = any(_REWARDED.search(key) for key in usual)
    compared = any(map(_COMPARED.search, counts))
    return "policy" if rewarded and not compared and any(pairs[loss].startswith("-") for pairs in lines) else ""


def _told(step: str, fields: Mapping[str, Field], example: str, epoch: str = "") -> str:
    names = {"seconds": "step time", "grad_norm": "gradient norm", "learning_rate": "learning rate", "mfu": "MFU"}
    said = ", ".join(f"{key!r} for the {names.get(of.name, of.name)}" for key, of in fields.items())
    shown = example.strip()
    inside = f" in {epoch!r}" if epoch else ""
    of_step = f"{step!r} for the step{inside}" if step else "no step, so that lines are counted"
    shown = shown[:MOST_SHOWN] + ("…" if len(shown) > MOST_SHOWN else "")
    return f"guessed: {of_step}, {said}; in: {shown}"
