"""Conditions of shell texts, as far as the text itself decides them: tests of variables, never of files or commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from seatrial.source.shell_values import Piece, Variables
from seatrial.source.shell_words import Text, Word

TESTS = ("[", "[[", "test", "true", "false")

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-gt": int.__gt__, "-ge": int.__ge__, "-lt": int.__lt__, "-le": int.__le__,
}  # fmt: skip
_TEXTS: dict[str, Callable[[str, str], bool]] = {"=": str.__eq__, "==": str.__eq__, "!=": str.__ne__}
_CLOSING = {"[": "]", "[[": "]]"}

Unset = Callable[[Piece], None]  # what is told of a variable that is nowhere assigned


def truth(words: Sequence[Word], variables: Variables, unset: Unset) -> bool | None:
    """Whether a test succeeds; None where only an execution could tell. Unknown variables are taken as not set."""
    name = words[0].bare
    if name == "!":
        told = truth(words[1:], variables, unset) if len(words) > 1 else None
        return None if told is None else not told
    if name in ("true", "false"):
        return name == "true"
    if name not in TESTS:
        return None
    fields = [piece for word in words[1:] for piece in variables.expand(word)]
    if any(piece.doubt == "executable" for each in fields for piece in each):
        return None
    for each in fields:
        for piece in each:
            if piece.doubt:
                unset(piece)
    texts = ["".join("" if piece.doubt else piece.text for piece in each) for each in fields]
    if name in _CLOSING and (not texts or texts.pop() != _CLOSING[name]):
        return None
    is_denied = texts[:1] == ["!"] and len(texts) > 1
    told = _told(texts[1:] if is_denied else texts, is_pattern=name == "[[")
    return (not told) if told is not None and is_denied else told


def _told(texts: Sequence[str], *, is_pattern: bool) -> bool | None:
    if len(texts) == 1:
        return bool(texts[0])
    if len(texts) == 2:
        return {"-n": bool(texts[1]), "-z": not texts[1]}.get(texts[0])
    if len(texts) == 3:
        left, operator, right = texts
        if operator in _TEXTS and not (is_pattern and set(right) & set("*?[")):
            return _TEXTS[operator](left, right)
        if operator in _NUMBERS and left.lstrip("-").isdecimal() and right.lstrip("-").isdecimal():
            return _NUMBERS[operator](int(left), int(right))
    return None


@dataclass
class _Branch:
    """An `if` that is open. `taken`, `active`: of the parts so far, of this part; None where it is not known."""

    offset: int
    is_condition: bool = True
    taken: bool | None = False
    active: bool | None = False
    tests: list[tuple[str, list[Word]]] = field(default_factory=list)


class Flow:
    """Which commands of a text are run, as far as `if` decides it."""

    def __init__(self, variables: Variables, unset: Unset, refuse: Callable[[int, str], NoReturn]) -> None:
        self._variables, self._unset, self._refuse = variables, unset, refuse
        self._open: list[_Branch] = []

    @property
    def doubtful(self) -> int | None:
        """Where the `if` stands of which it is not known whether the commands in it are run."""
        return next((branch.offset for branch in self._open if branch.active is None), None)

    def end(self) -> None:
        """Called behind the last command."""
        if self._open:
            self._refuse(self._open[-1].offset, "if")

    def take(self, words: list[Word], joint: str) -> list[Word]:
        """What is left to run of a command: nothing of conditions, and of parts that are not run."""
        while words:
            key, top = words[0].bare, self._open[-1] if self._open else None
            if key == "if":
                self._open.append(_Branch(words[0].offset))
            elif top is None:
                return words
            elif top.is_condition and key == "then":
                self._decide(top)
            elif top.is_condition:
                top.tests.append((joint, words))
                return []
            elif key == "elif":
                top.is_condition, top.tests = True, []
            elif key == "else":
                top.active = False if top.taken else (None if top.taken is None else True)
            elif key == "fi":
                self._open.pop()
                return []
            else:
                return [] if any(branch.active is False for branch in self._open) else words
            words = words[1:]
        return []

    def _decide(self, branch: _Branch) -> None:
        """Ends a condition: a list of tests with && or || between them, and not both."""
        told: bool | None = False
        if not branch.taken and not any(other.active is False for other in self._open[:-1]):
            joints = {joint for joint, _ in branch.tests[1:]}
            each = [truth(self._whole(words), self._variables, self._unset) for _, words in branch.tests]
            if not each or len(joints) > 1 or not joints <= {"&&", "||"}:
                told = None
            elif "||" in joints:
                told = True if True in each else None if None in each else False
            else:
                told = False if False in each else None if None in each else True
        branch.is_condition = False
        branch.active = None if branch.taken is None and told is not False else told
        branch.taken = True if branch.taken or told else (None if None in (branch.taken, told) else False)

    def _whole(self, words: list[Word]) -> list[Word]:
        """A part of `[[ a || b ]]` as a test of its own."""
        if words[0].bare in TESTS or words[0].bare == "!":
            is_cut = words[0].bare == "[[" and words[-1].bare != "]]"
            return [*words, Word(_bare("]]", words[-1].offset), words[-1].offset)] if is_cut else words
        if words[-1].bare == "]]":
            return [Word(_bare("[[", words[0].offset), words[0].offset), *words]
        return words


def _bare(text: str, offset: int) -> tuple[Text, ...]:
    return (Text(text, offset),)
