"""Shell text → words and operators by POSIX's rules of quoting, and bash's arrays; nothing is looked up or executed.

A word is kept in parts: text as it stands, variables, and what only a shell could tell (`$(…)`), kept as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from seatrial.errors import InputError

MAX_NESTING = 16  # quotes in defaults of variables in quotes …

Fail = Callable[[int, str, str, str], InputError]  # (offset, code, why, fix)


@dataclass(frozen=True, slots=True)
class Text:
    """Text as it stands; only what is not quoted can be an operator, an assignment or a reserved word."""

    text: str
    offset: int
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name`, `${name}` or `${name<operator>default}`; `written` is all of it."""

    name: str
    offset: int
    quoted: bool
    written: str
    operator: str = ""
    default: tuple[Part, ...] = ()
    is_list: bool = False  # ${name[@]}, ${name[*]}
    is_joined: bool = False  # "${name[*]}", in quotes: one word


@dataclass(frozen=True, slots=True)
class Executable:
    """Text that only a shell could evaluate: `$(…)`, backquotes, arithmetic, expansions that cut or replace text."""

    written: str
    offset: int
    quoted: bool


Part = Text | Variable | Executable


@dataclass(frozen=True, slots=True)
class Word:
    """A word in its parts; for `name=(…)`, `items` are the words between the brackets."""

    parts: tuple[Part, ...]
    offset: int
    items: tuple[Word, ...] | None = None

    @property
    def bare(self) -> str:
        """The word, if it is one piece without quotes, variables or escapes; else nothing."""
        part = self.parts[0] if len(self.parts) == 1 else None
        return part.text if isinstance(part, Text) and not part.quoted else ""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator or end of line between words; a redirection is `>`, whatever its kind."""

    text: str
    offset: int


_PLAIN = re.compile(r"[^ \t\n\r\\'\"$`;&|<>()]+")
_IN_DOUBLE = re.compile(r'[^"\\$`]+')
_IN_BRACES = re.compile(r"[^}\\'\"$`]+")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|>>|>&|<&|<>|>\||<|>)|&>>?")
_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[;&|()]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*?$!-])(\[[@*]\])?(?:(\})|(:?[-=+?]))")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_SKIP = re.compile(r"[^\\'\"()${}`]+")


class Lexer:
    """Takes a text apart. `places` gives each character's offset in the file, and one more for the end."""

    def __init__(self, text: str, places: Sequence[int], fail: Fail) -> None:
        self._text, self._places, self._fail = text, places, fail
        self._at = 0
        self._in_items = False

    def tokens(self) -> Iterator[Word | Operator]:
        """Words and operators in the order of the text. Raises InputError."""
        while (start := self._to_next_token()) < len(self._text):
            yield self._token(start)

    # --- between words ------------------------------------------------------------------------------------------------

    def _to_next_token(self) -> int:
        """Past blanks, joined lines and comments."""
        text = self._text
        while self._at < len(text):
            here = text[self._at]
            if here in " \t" or (here == "\r" and text[self._at + 1 : self._at + 2] in ("\n", "")):
                self._at += 1
            elif here == "\\" and (length := self._joined()):
                self._at += length
            elif here == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            else:
                break
        return self._at

    def _joined(self) -> int:
        """The length of a backslash with an end of line behind it; 0 where there is none."""
        if self._text.startswith("\\\n", self._at):
            return 2
        return 3 if self._text.startswith("\\\r\n", self._at) else 0

    def _token(self, start: int) -> Word | Operator:
        text = self._text
        if text[start] == "\n":
            self._at += 1
            return Operator("\n", self._places[start])
        if text.startswith(("<(", ">("), start):
            return self._word()
        if redirection := _REDIRECTION.match(text, start):
            if redirection.group().lstrip("0123456789") in ("<<", "<<-"):
                fix = "write the command without it, or use `seatrial capture`"
                self._refuse(start, "a here-document is no part of a command line", fix)
            self._at = redirection.end()
            return Operator(">", self._places[start])
        if operator := _OPERATOR.match(text, start):
            self._at = operator.end()
            return Operator(operator.group(), self._places[start])
        return self._word()

    def _word(self) -> Word:
        start = self._at
        parts: list[Part] = []
        while self._at < len(self._text):
            here = self._text[self._at]
            if plain := _PLAIN.match(self._text, self._at):
                parts.append(Text(plain.group(), self._places[self._at]))
                self._at = plain.end()
            elif here == "\\":
                parts += self._escape()
            elif here in "'\"$`":
                parts += self._quoted_or_expanded(quoted=False, depth=0)
            elif here == "(" and not self._in_items and _ARRAY.fullmatch(Word(tuple(parts), 0).bare):
                return Word(tuple(parts), self._places[start], self._items())
            elif self._text.startswith(("<(", ">("), self._at):
                parts.append(self._executable(self._at, 1, quoted=False))
            elif here == "\r" and self._text[self._at + 1 : self._at + 2] not in ("\n", ""):
                parts.append(Text(here, self._places[self._at]))
                self._at += 1
            else:
                break
        return Word(tuple(parts), self._places[start])

    def _items(self) -> tuple[Word, ...]:
        """The words of `name=(…)`."""
        start = self._at
        self._at += 1
        self._in_items = True
        items: list[Word] = []
        while (here := self._to_next_token()) < len(self._text):
            if self._text[here] == ")":
                self._at += 1
                self._in_items = False
                return tuple(items)
            token = self._token(here)
            if isinstance(token, Word):
                items.append(token)
            elif token.text != "\n":
                self._refuse(here, f"{token.text} stands in a list of words", "put it in quotes, or close the list")
        self._refuse(start, "the list of words that begins here never ends", "close it with )")

    # --- inside words -------------------------------------------------------------------------------------------------

    def _escape(self, *, in_quotes: bool = False) -> list[Part]:
        """A backslash and what it makes literal: between double quotes, only $ ` " \\ and the end of a line."""
        start, following = self._at, self._text[self._at + 1 : self._at + 2]
        if length := self._joined():
            self._at += length
            return []
        if not following or (in_quotes and following not in '$`"\\'):
            self._at += 1
            return [Text("\\", self._places[start], quoted=True)]
        self._at += 2
        return [Text(following, self._places[start], quoted=True)]

    def _until(self, closing: str, start: int, why: str, *, quoted: bool, depth: int) -> list[Part]:
        """The parts up to a quote or a brace, which is passed; `quoted` where double quotes are open."""
        parts: list[Part] = []
        plain = _IN_DOUBLE if closing == '"' else _IN_BRACES
        while (here := self._text[self._at : self._at + 1]) != closing:
            if not here:
                self._refuse(start, why, f"close it with {closing}")
            if match := plain.match(self._text, self._at):
                parts.append(Text(match.group(), self._places[self._at], quoted))
                self._at = match.end()
            elif here == "\\":
                parts += self._escape(in_quotes=quoted)
            elif here == "'" and quoted:
                parts.append(Text("'", self._places[self._at], quoted=True))
                self._at += 1
            else:
                parts += self._quoted_or_expanded(quoted=quoted, depth=depth + 1)
        self._at += 1
        return parts

    def _quoted_or_expanded(self, *, quoted: bool, depth: int) -> list[Part]:
        """Whatever begins with one of ' " $ `; `quoted` where double quotes are open around it."""
        start, here = self._at, self._text[self._at]
        if depth > MAX_NESTING:
            why = f"quotes and braces nest more than {MAX_NESTING} deep"
            raise self._fail(self._places[start], "too-deep", why, "simplify it")
        if here == '"':
            return self._double_quotes(depth)
        if here == "'":
            end = self._text.find("'", start + 1)
            if end < 0:
                self._refuse(start, "the quote that opens here is never closed", "close it with '")
            self._at = end + 1
            return [Text(self._text[start + 1 : end], self._places[min(start + 1, end)], quoted=True)]
        if here == "`":
            return [self._executable(start, 0, quoted=quoted)]
        return [self._expansion(quoted=quoted, depth=depth)]

    def _double_quotes(self, depth: int) -> list[Part]:
        start = self._at
        self._at += 1
        parts = self._until('"', start, "the quote that opens here is never closed", quoted=True, depth=depth)
        only = parts[0] if len(parts) == 1 else None
        if isinstance(only, Variable) and not only.is_joined and (only.is_list or only.name in "@*"):
            return parts
        return [Text("", self._places[start], quoted=True), *parts]  # "" is a word, too

    def _expansion(self, *, quoted: bool, depth: int) -> Part:
        """The part that a dollar begins; on its own it is only a dollar."""
        text, start = self._text, self._at
        if text.startswith("$(", start):
            return self._executable(start, 1, quoted=quoted)
        if text.startswith("$'", start) and not quoted:
            self._refuse(start, "$'…' has escapes of its own", "write plain quotes")
        if parameter := _PARAMETER.match(text, start):
            return self._parameter(parameter, quoted=quoted, depth=depth)
        if text.startswith("${", start):
            return self._executable(start, 1, quoted=quoted)
        name = _NAME.match(text, start + 1)
        end = name.end() if name else start + 1 + (text[start + 1 : start + 2] in tuple("0123456789@*#?$!-"))
        self._at = end
        if end == start + 1:
            return Text("$", self._places[start], quoted)
        return Variable(text[start + 1 : end], self._places[start], quoted, text[start:end])

    def _parameter(self, match: re.Match[str], *, quoted: bool, depth: int) -> Part:
        """`${name}`, and with a default, which is made of parts itself."""
        start, (name, index, closed, operator) = match.start(), match.groups()
        self._at = match.end()
        why = "the ${ that stands here is never closed"
        default = [] if closed else self._until("}", start, why, quoted=quoted, depth=depth)
        written = self._text[start : self._at]
        is_joined = quoted and index == "[*]"
        place, is_list = self._places[start], bool(index)
        return Variable(name, place, quoted, written, operator or "", tuple(default), is_list, is_joined)

    def _executable(self, start: int, opening: int, *, quoted: bool) -> Executable:
        """The text from `start` to the bracket that closes the one at `start + opening`, whatever is between."""
        text, at = self._text, start + opening + 1
        closing = {"(": ")", "{": "}", "`": "`"}
        open_ = [closing[text[start + opening]]]
        while open_:
            if at >= len(text):
                self._refuse(start, f"what begins here with {text[start : start + 2]} never ends", "close it")
            if plain := _SKIP.match(text, at):
                at = plain.end()
                continue
            here, top = text[at], open_[-1]
            at += 2 if here == "\\" else 1
            if here == top:
                open_.pop()
            elif here == "'" and top not in '"`':
                end = text.find("'", at)
                at = len(text) if end < 0 else end + 1
            elif here == "$" and text[at : at + 1] in ("(", "{"):
                open_.append(closing[text[at]])
                at += 1
            elif here in '"`' and top != "`":
                open_.append(here)
            elif here == "(" and top == ")":
                open_.append(")")
        self._at = at
        return Executable(text[start:at], self._places[start], quoted)

    def _refuse(self, at: int, why: str, fix: str) -> NoReturn:
        raise self._fail(self._places[at], "bad-shell", why, fix)
