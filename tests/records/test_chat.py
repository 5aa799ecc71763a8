"""Conversations: what is made of them by the template that lies beside a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial.records import DataError, forms
from seatrial.records.chat import NO_TEMPLATE, Template, renderer, template_of
from tests.helpers.record_files import TEMPLATES, messages_of

Lines = Callable[..., Path]

TURNS = st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=3)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_conversation_is_what_transformers_makes_of_it(with_template: Callable[[str], Path], template: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = with_template(template)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    template_here = template_of(str(folder))
    assert template_here is not None
    render = renderer(template_here)

    @settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
    @given(TURNS)
    def same(turns: list[tuple[str, str]]) -> None:
        messages = messages_of(*turns)
        whole = theirs.apply_chat_template(messages, tokenize=False)
        prompt = theirs.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        assert render("here", messages) == (prompt, whole[len(prompt) :])

    same()


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], r"line 1: has '\[\]' instead of messages; write a list of"),
        ("hello", "has 'hello' instead of messages"),
        ([{"role": "user", "content": 3}], "message 0 is .*; write"),
        ([{"role": "user", "content": "a"}], "the last message is of role 'user', and there is no answer to learn"),
        ([{"role": "system", "content": "x"}, *messages_of(("a", "b"))],
         r"line 1: the chat template refuses it \(no system\)"),
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_named(
    with_template: Callable[[str], Path], json_lines: Lines, messages: object, why: str
) -> None:
    template = template_of(str(with_template(TEMPLATES[2])))
    with pytest.raises(DataError, match=why):
        list(forms.answers(json_lines("chat.jsonl", {"messages": messages}), template)[1])


def test_a_template_can_do_no_harm() -> None:
    hostile = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    for text in (hostile, "{{ 1 // 0 }}", "{{ [][3].x }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"):
        with pytest.raises(DataError, match="the chat template refuses it"):
            renderer(Template(text=text))("here", messages_of(("a", "b")))
    with pytest.raises(DataError, match="its chat template cannot be read"):
        renderer(Template(text="{% if %}"))


def test_where_a_template_lies(with_template: Callable[[str], Path]) -> None:
    folder = with_template("beside")
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    assert (
        template_of(str(folder)) == template_of(str(folder / "tokenizer.json")) == Template(text="beside", names=names)
    )
    (folder / "chat_template.jinja").write_text("its own")
    assert template_of(str(folder)) == Template(text="its own", names=names)
    (folder / "tokenizer_config.json").unlink()
    assert template_of(str(folder)) is None  # only the tokenizer itself tells its special tokens
    (folder / "special_tokens_map.json").write_text(json.dumps({**names, "pad_token": "<pad>"}))
    assert template_of(str(folder)) == Template(text="its own", names=names)
    (folder / "special_tokens_map.json").write_text("{}")
    assert template_of(str(folder)) == Template(text="its own")
    (folder / "chat_template.jinja").write_text("{{ eos_token }}")
    assert template_of(str(folder)) is None
    assert template_of("byte") == NO_TEMPLATE
    assert template_of("meta-llama/Llama-3.1-8B") is None
    (folder / "tokenizer_config.json").write_text("[")
    with pytest.raises(DataError, match=r"tokenizer_config.json: not a JSON object"):
        template_of(str(folder))


def test_conversations_need_a_template() -> None:
    with pytest.raises(DataError, match="conversations need a chat template, and the tokenizer has none; put"):
        renderer(NO_TEMPLATE)
