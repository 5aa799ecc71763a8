"""The JSON Schema of dataclasses as they are written: every field is there, and more may be added.

The types come from pydantic, which reads the files by the same ones; descriptions from the docstrings: a class has its
own, and a field the sentences that name it; the table `fields.txt` has the others.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any, get_args, get_type_hints

Json = dict[str, Any]

NUMBER = "number_or_non_finite"
_NUMBER: Json = {
    "description": 'A number; one that JSON cannot express is the text "nan", "inf" or "-inf".',
    "anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}],
}
# The end of a field's name → its unit. The longest that fits counts.
_UNITS = {
    "seconds": "s", "wall_time": "s since the epoch", "monotonic_time": "s by a clock that is never set",
    "tokens": "tokens", "bytes": "bytes", "tokens_per_step": "tokens", "tokens_per_second_total": "tokens/s",
    "tokens_per_second_per_device": "tokens/s", "flops_per_second": "FLOP/s", "flops_per_token": "FLOP",
    "days_to_1t_tokens": "days", "mfu": "fraction", "fraction": "fraction", "tolerance": "fraction",
}  # fmt: skip
_NAMED = re.compile(r"`(\w+)`")
_LINE = re.compile(r"^([\w*]+\.\w+): (.+)$", re.MULTILINE)
_FIELDS = dict(_LINE.findall(files("seatrial.contracts").joinpath("fields.txt").read_text("utf-8")))
_SENTENCE = re.compile(r"(?<=[.;])\s+(?=[A-Z`])")


def schema_of(kind: type[Any], *, finite: bool = False, omits_none: bool = False) -> Json:
    """The schema of a dataclass as plain data.

    `finite`: its numbers are never texts. `omits_none`: fields that are None are left out.
    """
    from pydantic import TypeAdapter  # late: only who asks for a schema pays for it

    made = TypeAdapter(kind).json_schema(mode="serialization")
    classes = {each.__name__: each for _, each in _classes(kind)}
    definitions: Json = made.pop("$defs", {})
    definitions = {name: _object(each, classes[name], finite, omits_none) for name, each in definitions.items()}
    top = _object(made, kind, finite, omits_none)
    if f"#/$defs/{NUMBER}" in str((top, definitions)):
        definitions[NUMBER] = _NUMBER
    return {**top, "$defs": definitions}


def _object(made: Json, kind: type[Any], finite: bool, omits_none: bool) -> Json:
    """An object of which every field is there, unless it may be left out."""
    sentences = list(_sentences(kind))
    properties, required = {}, []
    for name, value in made.get("properties", {}).items():
        cleaned = _value(value, finite)
        optional = [part for part in cleaned.get("anyOf", ()) if part != {"type": "null"}]
        may_lack = omits_none and len(optional) < len(cleaned.get("anyOf", ()))
        if may_lack:
            cleaned = optional[0] if len(optional) == 1 else {"anyOf": optional}
        required += [] if may_lack else [name]
        properties[name] = {**_description(kind, name, sentences), **cleaned}
    about = inspect.cleandoc(kind.__doc__ or "")
    return {"type": "object", "description": about, "properties": properties, "required": required}


def _value(value: Any, finite: bool) -> Any:
    """Without pydantic's titles and defaults, and with the texts of numbers that are not finite."""
    if isinstance(value, list):
        return [_value(each, finite) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "number" and not finite:
        return {"$ref": f"#/$defs/{NUMBER}"}
    return {key: _value(each, finite) for key, each in value.items() if key not in ("title", "default")}


def _description(kind: type[Any], name: str, sentences: list[str]) -> Json:
    said = _FIELDS.get(f"{kind.__name__}.{name}", "")
    said = said or " ".join(sentence for sentence in sentences if name in _NAMED.findall(sentence))
    said = said or _FIELDS.get(f"*.{name}", "")
    ends = [end for end in _UNITS if name == end or name.endswith(f"_{end}")]
    unit = f"Unit: {_UNITS[max(ends, key=len)]}." if ends else ""
    text = " ".join(part for part in (said, unit) if part)
    return {"description": text} if text else {}


def _sentences(kind: type[Any]) -> Iterator[str]:
    """Of the docstrings of a class and of those that it is made from."""
    for each in kind.__mro__:
        if dataclasses.is_dataclass(each):
            for paragraph in inspect.cleandoc(each.__doc__ or "").split("\n\n"):
                yield from _SENTENCE.split(" ".join(paragraph.split()))


def _classes(kind: type[Any], path: str = "") -> Iterator[tuple[str, type[Any]]]:
    """The dataclass and those of its fields, each with its dotted path."""
    yield path, kind
    for name, hint in get_type_hints(kind).items():
        for inner in _inside(hint):
            if dataclasses.is_dataclass(inner) and isinstance(inner, type):
                yield from _classes(inner, f"{path}.{name}".lstrip("."))


def _inside(hint: Any) -> Iterator[Any]:
    parts = get_args(hint)
    if not parts:
        yield hint
    for part in parts:
        yield from _inside(part)


def described(made: Json, kind: type[Any], describe: Callable[[str], str | None]) -> Json:
    """The schema with descriptions by the dotted path of each field; of a class in several places, with its own."""
    paths: dict[str, list[str]] = {}
    for path, each in _classes(kind):
        paths.setdefault(each.__name__, []).append(path)
    for name, found in paths.items():
        properties: Mapping[str, Json] = (made if name == kind.__name__ else made["$defs"][name])["properties"]
        if len(found) == 1:
            for field, value in properties.items():
                if text := describe(f"{found[0]}.{field}".lstrip(".")):
                    value["description"] = text
    return made


def versioned(made: Json, version: int, **first: Json) -> Json:
    """The schema of an object with its version, and further fields, before its own."""
    own = {"v": {"const": version, "description": "Version of the contract."}, **first}
    properties = {**own, **made["properties"]}
    return {**made, "properties": properties, "required": [*own, *made["required"]]}
