"""Conditions of shell texts, as far as the text itself decides them: tests of variables, never of files or commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from seatrial.source.shell_values import Field, Piece, Variables, text_of
from seatrial.source.shell_words import Text, Word

TESTS = ("[", "[[", "test", "true", "false")

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-gt": int.__gt__, "-ge": int.__ge__, "-lt": int.__lt__, "-le": int.__le__,
}  # fmt: skip
_WORDS: dict[str, Callable[[str, str], bool]] = {"=": str.__eq__, "==": str.__eq__, "!=": str.__ne__}
_CLOSING = {"[": "]", "[[": "]]"}

Unset = Callable[[Piece], None]  # called for a variable that is assigned nowhere


# --- what may not be known: None --------------------------------------------------------------------------------------


def _not(known: bool | None) -> bool | None:
    return None if known is None else not known


def _any(values: Iterable[bool | None]) -> bool | None:
    each = set(values)
    return True if True in each else None if None in each else False


def _all(values: Iterable[bool | None]) -> bool | None:
    return _not(_any(map(_not, values)))


# --- tests ------------------------------------------------------------------------------------------------------------


def truth(words: Sequence[Word], variables: Variables, unset: Unset) -> bool | None:
    """Whether a test succeeds; None where only an execution could tell. Unknown variables are taken as not set."""
    name = words[0].bare
    if name == "!":
        return _not(truth(words[1:], variables, unset)) if len(words) > 1 else None
    if name in ("true", "false"):
        return name == "true"
    if name not in TESTS:
        return None
    texts = _texts([field for word in words[1:] for field in variables.expand(word)], unset)
    if texts is None or (name in _CLOSING and (not texts or texts.pop() != _CLOSING[name])):
        return None
    if texts[:1] == ["!"] and len(texts) > 1:
        return _not(_compared(texts[1:], is_pattern=name == "[["))
    return _compared(texts, is_pattern=name == "[[")


def _texts(fields: Sequence[Field], unset: Unset) -> list[str] | None:
    """The words of a test, with nothing for unknown variables; None where only an execution could tell them."""
    doubtful = [piece for field in fields for piece in field if piece.doubt]
    if any(piece.doubt == "executable" for piece in doubtful):
        return None
    for piece in doubtful:
        unset(piece)
    return [text_of(piece for piece in field if not piece.doubt) for field in fields]


def _compared(texts: Sequence[str], *, is_pattern: bool) -> bool | None:
    if len(texts) == 1:
        return bool(texts[0])
    if len(texts) == 2:
        return {"-n": bool(texts[1]), "-z": not texts[1]}.get(texts[0])
    if len(texts) == 3:
        left, operator, right = texts
        if operator in _WORDS and not (is_pattern and set(right) & set("*?[")):
            return _WORDS[operator](left, right)
        if operator in _NUMBERS and left.lstrip("-").isdecimal() and right.lstrip("-").isdecimal():
            return _NUMBERS[operator](int(left), int(right))
    return None


def _whole(words: list[Word]) -> list[Word]:
    """A part of `[[ a || b ]]` as a test of its own."""
    begins, ends = words[0].bare in (*TESTS, "!"), words[-1].bare == "]]"
    if not begins and ends:
        return [_bare("[[", words[0].offset), *words]
    return [*words, _bare("]]", words[-1].offset)] if words[0].bare == "[[" and not ends else words


def _bare(text: str, offset: int) -> Word:
    return Word((Text(text, offset),), offset)


# --- if ---------------------------------------------------------------------------------------------------------------


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
            elif top.is_condition and key != "then":
                top.tests.append((joint, words))
                return []
            elif key == "fi":
                self._open.pop()
                return []
            elif not self._begins_part(top, key):
                return [] if any(branch.active is False for branch in self._open) else words
            words = words[1:]
        return []

    def _begins_part(self, branch: _Branch, key: str) -> bool:
        """Goes on to the part of an `if` that a word begins; whether it begins one."""
        if branch.is_condition:
            self._decide(branch)
        elif key == "elif":
            branch.is_condition, branch.tests = True, []
        elif key == "else":
            branch.active = _not(branch.taken)
        else:
            return False
        return True

    def _decide(self, branch: _Branch) -> None:
        """Ends a condition: a list of tests with && or || between them, and not both."""
        holds: bool | None = False
        if not branch.taken and not any(other.active is False for other in self._open[:-1]):
            joints = {joint for joint, _ in branch.tests[1:]}
            each = [truth(_whole(words), self._variables, self._unset) for _, words in branch.tests]
            is_list = bool(each) and len(joints) <= 1 and joints <= {"&&", "||"}
            holds = (_any if "||" in joints else _all)(each) if is_list else None
        branch.is_condition = False
        branch.active = _all((_not(branch.taken), holds))
        branch.taken = _any((branch.taken, holds))
