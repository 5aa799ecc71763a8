"""Writes the reference page of the Python API from its signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import seatrial
from seatrial import api

_HEAD = """# The Python API

<!-- Made from the docstrings of `seatrial.api` by `make golden`; edit these instead. -->

[How to use it](../howto/python.md) is a notebook. A test pins these names, their arguments and their fields: some may
be added; what is ever renamed or removed is in the changelog.

"""


def api_page() -> str:
    """The page, as Markdown."""
    found = {name: getattr(seatrial, name) for name in api.__all__}
    functions = [_function(name, each) for name, each in found.items() if inspect.isfunction(each)]
    results = [_class(name, each) for name, each in found.items() if inspect.isclass(each)]
    about = inspect.cleandoc(api.__doc__ or "").partition("\n\n")[2].replace("    import seatrial\n\n    ", "")
    return _HEAD + "\n\n".join([_about(about), "## Functions", *functions, "## Types", *results]) + "\n"


def _about(text: str) -> str:
    """The module's docstring after its first line, without its example."""
    return text.partition("verdict.headline\n\n")[2] or text


def _function(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    lines, keywords = [f"seatrial.{name}("], False
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keywords:
            lines.append("    *,")
            keywords = True
        default = "" if parameter.default is inspect.Parameter.empty else f" = {_default(parameter.default)}"
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    code = "\n".join([*lines, f") -> {signature.return_annotation}"])
    return f"### {name}\n\n```python\n{code}\n```\n\n{_text(function)}"


def _default(value: object) -> str:
    return "Where()" if value == seatrial.Where() else repr(value)


def _class(name: str, kind: Any) -> str:
    rows = [f"| `{field}` | {_type(annotation)} |" for field, annotation in _fields(kind)]
    table = "\n\n| field | type |\n|---|---|\n" + "\n".join(rows) if rows else ""
    return f"### {name}\n\n{_text(kind)}{table}"


def _fields(kind: Any) -> Iterator[tuple[str, str]]:
    if dataclasses.is_dataclass(kind):
        yield from ((field.name, str(field.type)) for field in dataclasses.fields(kind))
    for member, value in vars(kind).items():
        if isinstance(value, (property, cached_property)):
            getter = value.fget if isinstance(value, property) else value.func
            yield member, str(inspect.signature(getter or len).return_annotation)


def _type(annotation: str) -> str:
    return f"`{annotation}`".replace("|", "\\|")


def _text(documented: Any) -> str:
    """A docstring as Markdown: `<` and `*` stand for themselves."""
    text = inspect.getdoc(documented) or ""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*_])", r"\\\1", part) for part in parts)
