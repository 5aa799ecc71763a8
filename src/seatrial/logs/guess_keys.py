"""The keys of the step, the loss and the time in a log's lines whose spelling nobody knows.

Only what is the same throughout the file counts. The step is a whole number that grows by the same amount from line to
line; the loss is what is called so; a time needs a unit, and must not be the time since the start. Where no line has a
step, that of an epoch will do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise

from seatrial.logs.grammar import Field, read_values
from seatrial.logs.metric_keys import number, plain
from seatrial.logs.numbers import CUT, NUMBER

FEWEST = 4  # steps: three times the same distance
REGULAR = 0.9  # of the distances between steps
USUAL = 0.9  # of the lines of steps, in which a figure stands
MOST_OF_AN_EPOCH = 3  # lines, that are still one a repeat or a rank

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

IS_LOSS = re.compile(r"(?<![a-z])loss(?![a-z])", re.IGNORECASE)
NOT_TRAINED = re.compile(r"(?<![a-z])(?:eval|val|valid|validation|test|aux|scale|scaling|best|min|z)(?![a-z])", re.I)
_STEP_WORDS = ("global_step", "step", "iteration", "iter", "update", "it")
_LOSS_WORDS = ("loss", "train_loss", "train/loss", "training_loss", "lm_loss", "ce_loss")
_NO_STEP = re.compile(
    r"epoch|rank|gpu|node|worker|loss|size|port|pid|seed|lr|batch_?size|tokens|samples|layer|time|elapsed|sec|eta|mem",
    re.I,
)
_IS_EPOCH = re.compile(r"(?<![a-z])epoch(?![a-z])", re.IGNORECASE)
_SECONDS = re.compile(r"\d ?(ms|s|sec|seconds)$")
_OF_A_STEP = re.compile(r"(?<![a-z])(?:dt|step|iter|iteration|it|elapsed|time|took|duration|speed)(?![a-z])", re.I)
FIGURES: Mapping[str, Field] = {
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

Pair = tuple[str, str]


def values_in(text: str, fields: Mapping[str, Field]) -> dict[str, float]:
    """The fields of a line, by these keys."""
    return read_values(PAIR.findall(text), fields).values


def pairs_in(text: str) -> list[Pair]:
    """The keys of a line with their numbers."""
    found = [(pair[1], pair[2]) for pair in PAIR.finditer(text)]
    bare = _BARE.search(text)
    return [(BARE, bare[1]), *found] if bare else found


def choose(lines: Sequence[Sequence[Pair]]) -> tuple[str, dict[str, Field]] | None:
    """The key of the step, and the fields of the others by their keys."""
    by_key = [dict(pairs) for pairs in lines]
    keys = Counter(chain.from_iterable(by_key))
    losses = [key for key in keys if keys[key] >= FEWEST and is_called_loss(key)]
    for loss in sorted(losses, key=lambda key: (_place(key, _LOSS_WORDS), -keys[key])):
        own = [pairs for pairs in by_key if loss in pairs]
        if not is_loss([pairs[loss] for pairs in own]):
            continue
        if found := beside(loss, own):
            return found
        # Lines of something else, such as the summary of an epoch, may call their loss the same.
        for step in (BARE, *(key for key in keys if plain(key) == "epoch")):
            some = [pairs for pairs in own if step in pairs]
            if FEWEST <= len(some) < USUAL * len(own) and (found := beside(loss, some)) and found[0] == step:
                return found
    return None


def usual_loss(lines: Sequence[Mapping[str, str]]) -> str:
    """The key of the loss that most of these have; "" where there are too few, or it looks like none."""
    counts = Counter(filter(is_called_loss, chain.from_iterable(lines)))
    for loss in sorted(counts, key=lambda key: (-counts[key], _place(key, _LOSS_WORDS))):
        if counts[loss] >= FEWEST and is_loss([pairs[loss] for pairs in lines if loss in pairs]):
            return loss
    return ""


def is_called_step(key: str) -> bool:
    """True if a key may be that of a step or an epoch."""
    return key == BARE or re.split(r"[_/ ]", plain(key))[-1] in (*_STEP_WORDS, "steps", "epoch")


def is_called_loss(key: str) -> bool:
    """True if a key may be that of the loss of the training."""
    return IS_LOSS.search(key) is not None and not NOT_TRAINED.search(key)


def beside(loss: str, lines: Sequence[Mapping[str, str]]) -> tuple[str, dict[str, Field]] | None:
    """The choice of `choose` among the lines with this loss; None where there is no step."""
    counts = Counter(chain.from_iterable(lines))
    usual = [key for key, count in counts.items() if count >= USUAL * len(lines) and key != loss]
    strides = {key: stride for key in usual if (stride := _stride_of(key, lines))}
    steps = [key for key in strides if not _NO_STEP.search(key)] or _epochs_of_a_line(strides, lines)
    if not steps:
        return None
    step = min(steps, key=lambda key: _place(key, _STEP_WORDS))
    fields = {loss: Field(name="loss")}
    for key in usual:
        figure = None if key == step else _figure(key, lines, strides[step])
        if figure and all(figure.name != other.name for other in fields.values()):
            fields[key] = figure
    return step, fields


def _epochs_of_a_line(numbers: Iterable[str], lines: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys of epochs of which each has a line of its own, or hardly more."""
    epochs = (key for key in numbers if _IS_EPOCH.search(key) and not _NO_STEP.search(_IS_EPOCH.sub("", key)))
    return [key for key in epochs if len({pairs.get(key) for pairs in lines}) > len(lines) / MOST_OF_AN_EPOCH]


def _place(key: str, words: Sequence[str]) -> int:
    """The place in the list of a key, or else of the last of its words; the end of the list where it has neither."""
    name = plain(key)
    end = re.split(r"[_/ ]", name)[-1]
    return next((n for n, word in enumerate(words) if word in (name, end)), len(words))


def epoch_of(step: str, lines: Sequence[Mapping[str, str]]) -> str:
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


def is_loss(texts: Sequence[str]) -> bool:
    """True if these may be losses: numbers, most of which have a fraction, or are none (nan)."""
    broken = sum(1 for text in texts if "." in text or re.search("nan|inf|e-", text, re.IGNORECASE))
    return broken >= USUAL * len(texts) and not any("%" in text for text in texts)


def _stride_of(key: str, lines: Sequence[Mapping[str, str]]) -> int:
    """By how much a number grows from line to line; 0 where it does not always, but for copies and new beginnings.

    One that is counted in epochs begins again with each.
    """
    texts = [_digits(pairs[key]) for pairs in lines if key in pairs]
    if not all(text.isdecimal() and len(text) < 13 for text in texts):
        return 0
    gaps = [after - before for before, after in pairwise(map(int, texts)) if after != before]
    gaps = [gap for gap in gaps if gap > 0] if epoch_of(key, lines) else gaps
    if len(gaps) < FEWEST - 1:
        return 0
    stride, count = Counter(gaps).most_common(1)[0]
    return stride if stride > 0 and count >= REGULAR * len(gaps) - 1 else 0


def _figure(key: str, lines: Sequence[Mapping[str, str]], stride: int) -> Field | None:
    """The field of another key; a time only with its unit, and in a log of every n-th step only if it is of a step."""
    known = FIGURES.get(plain(key))
    if known is not None:
        is_percent = known.name == "mfu" and any((number(pairs[key]) or 0.0) > 1 for pairs in lines if key in pairs)
        return replace(known, per=100) if is_percent else known
    units = {found[1] if (found := _SECONDS.search(pairs[key])) else "" for pairs in lines if key in pairs}
    if len(units) != 1 or "" in units or not _OF_A_STEP.search(key):
        return None
    is_of_a_step = stride == 1 or re.search(r"step|iter|(?<![a-z])it(?![a-z])", key, re.IGNORECASE)
    if not is_of_a_step or _accumulates([number(pairs[key]) or 0.0 for pairs in lines if key in pairs]):
        return None
    return Field(name="seconds")  # its unit is read with the number


def _accumulates(values: Sequence[float]) -> bool:
    """True if these are times since the start, not of a step."""
    grows = sum(1 for before, after in pairwise(values) if after >= before)
    return len(values) >= FEWEST and grows >= REGULAR * (len(values) - 1) and values[-1] > 1.5 * values[0]


BETWEEN = r"['\"]?(?: ?[:=] ?|\s{1,8}|: {1,8})['\"]?[\[(]?"  # a key and its number
TOTAL = r"(?:/(?P<total>\d{1,9}))?"


def number_of(step: str) -> str:
    """The pattern of the number of a step, with the total that may stand behind it."""
    if step == BARE:
        # Ten million and the like stand for no end at all.
        return rf"{_BARE_BEGINS}(?P<step>\d{{1,9}})/(?:10{{7,9}}|(?P<total>\d{{1,9}})){_BARE_ENDS}"
    return rf"(?<![\w.]){re.escape(step)}{BETWEEN}(?P<step>\d[\d,]*){TOTAL}"
