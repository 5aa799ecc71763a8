"""A conversation → a prompt and its answer, by the chat template that lies beside a Hugging Face tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from seatrial.train.data.tokenizer import Tokenizer

FORM = ("messages",)
_ABSENT = {"tools": None, "documents": None}  # templates ask for them
_MESSAGE = '{"role": "user", "content": "…"}'


def renderer(tokenizer: Tokenizer) -> Callable[[str, Any], tuple[str, str]]:
    """What makes (prompt, last answer) of the messages at a place, as transformers' `apply_chat_template` does.

    Raises ValueError where the tokenizer has no template, or one that cannot be read; what it returns raises one for
    messages that are none, that do not end with an answer, or that the template refuses.
    """
    if not tokenizer.template:
        why = "conversations need a chat template, and the tokenizer has none"
        fix = "put its chat_template.jinja, or a tokenizer_config.json with chat_template, beside tokenizer.json"
        raise ValueError(f"data.tokenizer: {why}; {fix}")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    try:
        template = environment.from_string(tokenizer.template)
    except TemplateError as error:
        raise ValueError(f"data.tokenizer: its chat template cannot be read ({error}); give another one") from error

    def text_of(where: str, messages: list[Any], *, asks: bool) -> str:
        try:
            return template.render(messages=messages, add_generation_prompt=asks, **_ABSENT, **tokenizer.names)
        except (TemplateError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: the chat template refuses it ({error})") from error

    def render(where: str, messages: Any) -> tuple[str, str]:
        _check(where, messages)
        prompt, whole = text_of(where, messages[:-1], asks=True), text_of(where, messages, asks=False)
        if not whole.startswith(prompt):
            raise ValueError(f"{where}: with its answer, the chat template makes another text of the prompt")
        return prompt, whole[len(prompt) :]

    return render


def _check(where: str, messages: Any) -> None:
    """Raises ValueError where these are no messages that end with an answer."""
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"{where}: has {str(messages)[:40]!r} instead of messages; write a list of {_MESSAGE}")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(name), str) for name in ("role", "content")):
            raise ValueError(f"{where}: message {number} is {str(message)[:60]!r}; write {_MESSAGE}")
    if messages[-1]["role"] != "assistant":
        why = f"the last message is of role {messages[-1]['role'][:40]!r}, and there is no answer to learn"
        raise ValueError(f"{where}: {why}; end with one of role 'assistant'")


def _refuse(why: str) -> NoReturn:
    raise TemplateError(why)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
