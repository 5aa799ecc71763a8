"""A conversation → a prompt and its answer, by the chat template that lies beside a Hugging Face tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from seatrial.records import DataError
from seatrial.records.paths import read_object, why_no_file

if TYPE_CHECKING:
    from jinja2 import Environment

FORM = ("messages",)
_ABSENT = {"tools": None, "documents": None}  # templates ask for them
_MESSAGE = '{"role": "user", "content": "…"}'
_WRITE = f"write a list of {_MESSAGE}"


@dataclass(frozen=True, kw_only=True)
class Template:
    """A template that makes one text of a conversation ("": none); `names` are special tokens, such as bos_token."""

    text: str = ""
    names: Mapping[str, str] = field(default_factory=dict)


NO_TEMPLATE = Template()


def tokenizer_file(name: str) -> Path:
    """The tokenizer.json that a path names, or the folder it is in; it may not be there."""
    path = Path(name).expanduser()
    return path / "tokenizer.json" if path.is_dir() else path


def template_of(name: str) -> Template | None:
    """The template of a tokenizer; None where its special tokens are not told without loading it, or it is not here."""
    if name == "byte":
        return NO_TEMPLATE
    path = tokenizer_file(name)
    if why_no_file(path) != "":
        return None
    beside = configuration(path)
    text = template_text(path, beside)
    if text and (beside is None or ("eos_token" in text and "eos_token" not in beside)):
        return None
    named = {key: special_token(beside or {}, key) for key in ("bos_token", "eos_token")}
    return Template(text=text, names={key: token for key, token in named.items() if token is not None})


def configuration(path: Path) -> Mapping[str, Any] | None:
    """The files beside a tokenizer.json as one object, if there are any. Raises DataError where one cannot be read.

    What tokenizer_config.json does not say, special_tokens_map.json does.
    """
    files = [path.with_name(name) for name in ("special_tokens_map.json", "tokenizer_config.json")]
    there = [_object_in(file) for file in files if why_no_file(file) is not None]
    return {key: value for each in there for key, value in each.items()} if there else None


def _object_in(file: Path) -> Mapping[str, Any]:
    try:
        return read_object(file)
    except ValueError as error:
        raise DataError(f"{file}: not a JSON object ({error})", "copy it again", "data.tokenizer") from error


def special_token(beside: Mapping[str, Any], key: str) -> str | None:
    """The token that a tokenizer's configuration names."""
    named = beside.get(key)
    named = named.get("content") if isinstance(named, dict) else named
    return named if isinstance(named, str) else None


def template_text(path: Path, beside: Mapping[str, Any] | None) -> str:
    """The template of a chat: a file of its own, or in the configuration, alone or named `default` among several."""
    file = path.with_name("chat_template.jinja")
    if why_no_file(file) == "":
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: cannot be read as UTF-8 ({error})", "copy it again", "data.tokenizer") from error
    given = (beside or {}).get("chat_template")
    if isinstance(given, list):
        given = next((t.get("template") for t in given if isinstance(t, dict) and t.get("name") == "default"), None)
    return given if isinstance(given, str) else ""


def renderer(template: Template) -> Callable[[str, Any], tuple[str, str]]:
    """A function (place, messages) → (prompt, last answer), as transformers' `apply_chat_template` makes them.

    Raises DataError where there is no template, or one that cannot be read; what it returns raises one for messages
    that are none, that do not end with an answer, or that the template refuses.
    """
    from jinja2 import TemplateError

    if not template.text:
        why = "conversations need a chat template, and the tokenizer has none"
        fix = "put its chat_template.jinja, or a tokenizer_config.json with chat_template, beside tokenizer.json"
        raise DataError(why, fix, "data.tokenizer")
    try:
        made = _environment().from_string(template.text)
    except (TemplateError, RecursionError) as error:
        why = f"its chat template cannot be read ({error})"
        raise DataError(why, "give another one", "data.tokenizer") from error

    def text_of(where: str, messages: list[Any], *, asks: bool) -> str:
        try:
            return made.render(messages=messages, add_generation_prompt=asks, **_ABSENT, **template.names)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            why = f"{where}: the chat template refuses it ({error})"
            raise DataError(why, "change the messages, or give another template") from error

    def render(where: str, messages: Any) -> tuple[str, str]:
        check_messages(where, messages)
        prompt, whole = text_of(where, messages[:-1], asks=True), text_of(where, messages, asks=False)
        if not whole.startswith(prompt):
            why = f"{where}: with its answer, the chat template makes another text of the prompt"
            raise DataError(why, "give a template that adds the answer to the end")
        return prompt, whole[len(prompt) :]

    return render


def _environment() -> Environment:
    """An environment for templates with all that transformers' has, in Jinja's sandbox."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}` marks answers; to the text it adds nothing."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment


def check_messages(where: str, messages: Any) -> None:
    """Raises DataError where these are no messages that end with an answer."""
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: has {str(messages)[:40]!r} instead of messages", _WRITE)
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(name), str) for name in ("role", "content")):
            raise DataError(f"{where}: message {number} is {str(message)[:60]!r}", f"write {_MESSAGE}")
    if messages[-1]["role"] != "assistant":
        why = f"{where}: the last message is of role {messages[-1]['role'][:40]!r}, and there is no answer to learn"
        raise DataError(why, "end with one of role 'assistant'")


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
