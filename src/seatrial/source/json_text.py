"""JSON: the standard library decides what is JSON and what it means; a scanner says where everything stands."""

from __future__ import annotations

import json
import re

from seatrial.errors import InputError
from seatrial.source.tree import MAX_DEPTH, MAX_DIGITS, MAX_VALUES, Builder, Places

# A string that never ends is one token too: scanned again from each of its quotes, it would cost its length squared.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)

# The decoder's words; what stands at the place that it names; why ({} is that), and what to do.
_ESCAPE_IT = 'close the string with ", or write \\t, \\n or \\u00XX'
_MISTAKES = (
    ("Invalid control character", r"\t", "a tab stands inside a string", _ESCAPE_IT),
    ("Invalid control character", r"[\r\n]", "a line break stands inside a string", _ESCAPE_IT),
    ("Invalid control character", "", "a control character stands inside a string", _ESCAPE_IT),
    ("Unterminated string", "", "the string that begins here never ends", 'close it with "'),
    ("Invalid \\", "", "a \\ inside a string begins an escape, and this is none", "write \\\\ for a backslash"),
    ("", r",\s*[}\]]", "a comma stands before a closing bracket", "remove the comma"),
    ("", r"//|/\*|#", "JSON has no comments", "remove it, or keep it as a key that begins with _"),
    ("", r"'", "JSON strings stand in double quotes", "write \" instead of '"),
    ("", r"(None|True|False)\b", "{} is Python's", "write null, true or false"),
    ("", r"[“”„‟‘’«»]", "{} is no quotation mark of JSON", 'write "'),
    ("Expecting value, at first", ".", "this is not JSON, which begins with {{",
     "if it is YAML, let the file's name end in .yaml"),
    ("", r"\Z", "the text ends too early: a bracket or a value is missing", "complete it"),
    ("Extra data", "", "the document was complete before this", "remove what follows, or a bracket too many"),
    ("Expecting ',' delimiter", "", "a comma or a closing bracket is missing before this", "add it"),
    ("Expecting ':' delimiter", "", "a colon is missing between a key and its value", "add it"),
    ("Expecting property name", "", "a key in double quotes was expected here", 'write "key": value'),
)  # fmt: skip


def read_json(text: str, builder: Builder) -> None:
    """Two looks at one text: `json.loads` says whether it is JSON, the tokens say where everything stands."""
    places = builder.places
    tokens = _tokens(text, places)
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise _mistake(text, error, places) from None
    for offset, token in tokens:
        mark = places.mark(offset)
        if token in "{[":
            builder.begin({} if token == "{" else [], mark)
        elif token in "}]":
            builder.end()
        elif token not in ":,":
            value = json.loads(token)
            if builder.expects_key:
                builder.key(value, mark)
            else:
                builder.scalar(value, value if isinstance(value, str) else token, mark)


def _tokens(text: str, places: Places) -> list[tuple[int, str]]:
    """The tokens with their offsets, of broken JSON too; what `json.loads` is too patient with ends here."""
    tokens: list[tuple[int, str]] = []
    depth = 0
    for match in _TOKEN.finditer(text):
        offset, token = match.start(), match.group()
        depth += (token in "{[") - (token in "}]")
        if depth > MAX_DEPTH or len(tokens) > 4 * MAX_VALUES:
            why = f"values are nested more than {MAX_DEPTH} deep" if depth > MAX_DEPTH else "there are too many values"
            code = "too-deep" if depth > MAX_DEPTH else "too-large"
            raise places.error(offset, code, why, "name a configuration file, not data")
        if token in ("NaN", "Infinity", "-Infinity"):
            raise places.error(offset, "bad-json", f"{token} is not JSON", "write a number, or null")
        if token[0] != '"' and len(token) > MAX_DIGITS:
            raise places.error(offset, "bad-json", f"{len(token)} characters are no number or word", "shorten it")
        tokens.append((offset, token))
    return tokens


def _mistake(text: str, error: json.JSONDecodeError, places: Places) -> InputError:
    """The error for broken JSON: the mistake that it probably is, at the place where it was made."""
    offset, rest = error.pos, text[error.pos : error.pos + 200]
    before = text[:offset].rstrip()
    if text.startswith("\ufeff"):
        why = "the file begins with a byte order mark, which JSON forbids"
        return places.error(0, "bad-json", why, "save it as UTF-8 without BOM")
    if rest[:1] in ("}", "]") and before.endswith(","):
        offset, rest = len(before) - 1, before[-1] + rest  # where the comma stands
    said = error.msg if before else f"{error.msg}, at first"
    for words, found, why, fix in _MISTAKES:
        if said.startswith(words) and (match := re.match(found, rest)):
            return places.error(offset, "bad-json", why.format(match[0]), fix)
    why, fix = "a value was expected here", "write a string in double quotes, a number, true, false or null"
    return places.error(offset, "bad-json", why, fix)
