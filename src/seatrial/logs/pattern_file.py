"""Reads a user's own family of logs: a small TOML file that says how the lines of steps look (`--pattern`).

`docs/howto/judge-a-log.md` documents it with an example. Whatever is wrong with it ends in an InputError that names the
line and the fix.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from seatrial.errors import InputError, Mark, reason_of
from seatrial.events import REPORTED
from seatrial.logs.families import FAMILIES
from seatrial.logs.grammar import NEVER, Family, Field, Meaning, Note
from seatrial.logs.one_file import Spellings
from seatrial.logs.time_limit import limited

MAX_BYTES = 100_000
_UNITS = {"milliseconds": Field(name="seconds", per=1000), "mfu_percent": Field(name="mfu", per=100)}
_NAMES = ("loss", "seconds", "tokens", "grad_norm", "learning_rate", *REPORTED)
FIELDS: Mapping[str, Field] = {**{name: Field(name=name) for name in _NAMES}, **_UNITS}
# Key of the file → what a line that it finds means, and the groups that it has to have, or may.
_NOTES: Mapping[str, tuple[Meaning, tuple[str, ...], tuple[str, ...]]] = {
    "start": ("start", (), ("planned_steps", "num_devices", "global_batch_size", "sequence_length", "tokens_per_step")),
    "end": ("end", (), ("exit_code",)),
    "eval": ("eval", ("loss",), ("step", "seconds")),
    "checkpoint": ("checkpoint", (), ("step", "seconds")),
}
_KINDS: Mapping[str, type] = {
    "name": str, "step": str, "pair": str, "fields": dict, "counted_from": int, "example": str,
    **dict.fromkeys(_NOTES, str),
}  # fmt: skip
# A number that the reader can trust to be one.
_WHOLE = r"(?:\\d|\[0-9\])(?:\+|\*|\{\d*,?\d*\}|\[\\d,\]\*)?"
_NAMED = re.compile(r"[A-Za-z][\w.-]{0,40}")


def read_pattern(path: Path) -> Spellings:
    """The family that the file describes. Raises InputError."""
    return _Pattern(path).spellings()


class _Pattern:
    """A file that is being read; what is wrong with it is said with its line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                self._refuse("", f"it has more than {MAX_BYTES:,} bytes", "name a pattern file, not a log")
            self._text = content.decode("utf-8-sig")
            self._data = tomllib.loads(self._text)
        except OSError as error:
            why = f"it cannot be read: {reason_of(error)}"
            raise InputError.single("pattern", str(path), why, "name a pattern file") from error
        except UnicodeDecodeError as error:
            raise InputError.single("pattern", str(path), "it is no UTF-8", "save it as UTF-8") from error
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
            mark = Mark(file=str(path), line=int(place[1]), column=int(place[2])) if place else None
            why = f"it is no TOML: {str(error).partition(' (at ')[0]}"
            fix = "write regular expressions in single quotes: step = '(?P<step>\\d+) …'"
            raise InputError.single("pattern", str(path), why, fix, mark) from error

    def _refuse(self, key: str, why: str, fix: str) -> NoReturn:
        raise InputError.single("pattern", key or str(self._path), why, fix, self._mark(key))

    def _mark(self, key: str) -> Mark:
        """The place of a key in the file, or the file where it has no such key."""
        last = re.escape(key.rpartition("fields.")[2])
        lines = self._text.splitlines() if key and hasattr(self, "_text") else []
        line = next((n for n, text in enumerate(lines, 1) if re.match(rf"\s*[\"']?{last}[\"']?\s*=", text)), 1)
        return Mark(file=str(self._path), line=line, column=1)

    def spellings(self) -> Spellings:
        self._check_keys()
        name = self._text_of("name")
        if not _NAMED.fullmatch(name) or name in FAMILIES:
            known = "the name of a family that is known already" if name in FAMILIES else "no name"
            self._refuse("name", f"{name[:60]!r} is {known}", "call it by letters and digits, such as my-trainer")
        head = self._regex("step")
        fields = self._fields()
        self._check_groups("step", head, ("step",), ("step", "total", *fields))
        for group in {"step", "total"} & head.groupindex.keys():
            if not re.search(rf"\(\?P<{group}>{_WHOLE}\)", head.pattern):
                self._refuse("step", f"the group {group} has to be of digits alone", rf"write (?P<{group}>\d+)")
        pair = self._pair()
        counted_from = self._data.get("counted_from", 1)
        if counted_from not in (0, 1) or isinstance(counted_from, bool):
            self._refuse("counted_from", f"{counted_from!r} is not the number of a first step", "write 0 or 1")
        family = Family(
            name=name, anchors=("",), head=head, pair=pair, fields=fields, counted_from=counted_from,
            notes=tuple(self._note(key) for key in _NOTES if key in self._data),
        )  # fmt: skip
        why = "a regular expression takes too long: it tries too many ways to match a line"
        fix = r"no repetition in a repetition, such as (\w+\s?)*; no two .* in a row; say what follows: [^|]* for .*"
        slow = InputError.single("pattern", str(self._path), why, fix, self._mark("step"))
        with limited(slow):
            if "example" in self._data and not head.search(self._text_of("example")):
                fix = "correct step, or give a line of a step"
                self._refuse("example", "the step does not match this line", fix)
        return Spellings(families=(family,), metrics_files=False, guessed=False, slow=slow)

    def _check_keys(self) -> None:
        for key, value in self._data.items():
            if key not in _KINDS:
                self._refuse(key, f"a pattern file has no {key[:60]!r}", _meant(key, _KINDS))
            if not isinstance(value, _KINDS[key]):
                kind = {str: "a text", int: "a number", dict: "a table"}[_KINDS[key]]
                self._refuse(key, f"it has to be {kind}", f"see the example in the documentation: {key} = …")
        for key, what in (("name", "my-trainer"), ("step", r"step (?P<step>\d+) loss (?P<loss>\S+)")):
            if key not in self._data:
                self._refuse("", f"it has no {key}", f"add {key} = '{what}'")

    def _text_of(self, key: str) -> str:
        return str(self._data[key])

    def _regex(self, key: str) -> re.Pattern[str]:
        try:
            return re.compile(self._text_of(key))
        except (re.error, RecursionError, OverflowError) as error:
            at = getattr(error, "pos", None)
            where = f" at character {at + 1}" if at is not None else ""
            why = f"this is no regular expression: {getattr(error, 'msg', error)}{where}"
            self._refuse(key, why, "correct it; special characters as they are need a backslash: \\[ \\( \\. \\|")

    def _check_groups(
        self, key: str, pattern: re.Pattern[str], needed: tuple[str, ...], known: tuple[str, ...]
    ) -> None:
        for group in needed:
            if group not in pattern.groupindex:
                self._refuse(key, f"it has no group {group}", rf"name what finds it: (?P<{group}>…)")
        for group in pattern.groupindex:
            if group not in known:
                self._refuse(key, f"no field is called {group}", _meant(group, known))

    def _fields(self) -> dict[str, Field]:
        """The fields by their keys: those of the file, and each one by its own name."""
        named: dict[str, Field] = {}
        for key, name in self._data.get("fields", {}).items():
            if not isinstance(name, str) or name not in FIELDS:
                self._refuse(f"fields.{key}", f"no field is called {str(name)[:60]}", _meant(str(name), FIELDS))
            named[key] = FIELDS[name]
        return {**FIELDS, **named}

    def _pair(self) -> re.Pattern[str]:
        if "pair" not in self._data:
            return NEVER
        pair = self._regex("pair")
        if pair.groups != 2:
            why = f"it has {pair.groups} groups: the first is the key, the second its number"
            self._refuse("pair", why, r"write two, such as (\w+)=(\S+)")
        return pair

    def _note(self, key: str) -> Note:
        means, needed, known = _NOTES[key]
        pattern = self._regex(key)
        self._check_groups(key, pattern, needed, (*needed, *known))
        if pattern.match(""):
            self._refuse(key, "it matches an empty line, so any", "say what such a line has in it")
        return Note(means=means, literal="", pattern=pattern, trains=True)


def _meant(name: str, known: Collection[str]) -> str:
    """The suggestion for an unknown name: the nearest known one, or else all of them."""
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
