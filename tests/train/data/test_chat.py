"""Conversations, and other names of prompts and answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial.train.data.chat import renderer
from seatrial.train.data.records import answers
from seatrial.train.data.tokenizer import BYTES, load_tokenizer

Lines = Callable[..., Path]

# In the manner of Llama 3, ChatML and Mistral: three ways with blanks, a role that is refused, and text of the system.
TEMPLATES = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n\n{{ m['content'] | trim }}<|end_of_text|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n\n{% endif %}",
    "{%- if tools is not none %}\n{{ tools | tojson }}\n{%- endif %}\n"
    "{% for message in messages %}\n    {{- '<' + message.role + '>\\n' + message.content + '</>' }}\n{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<assistant>\\n' }}{% endif %}",
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[A] ' + m.content + ' [B]' }}{% elif m.role == 'assistant' %}"
    "{{ m.content + eos_token }}{% else %}{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}",
)  # fmt: skip
TURNS = st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=3)


def messages_of(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for turn in turns
            for role, text in zip(("user", "assistant"), turn, strict=True)]  # fmt: skip


@pytest.fixture
def with_template(bpe: Path, tmp_path: Path) -> Callable[[str], Path]:
    def make(template: str) -> Path:
        folder = tmp_path / "tokenizer"
        shutil.copytree(bpe, folder, dirs_exist_ok=True)
        names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
        return folder

    return make


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_conversation_is_what_transformers_makes_of_it(with_template: Callable[[str], Path], template: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = with_template(template)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = load_tokenizer(str(folder))
    render = renderer(tokenizer)

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(TURNS)
    def same(turns: list[tuple[str, str]]) -> None:
        messages = messages_of(*turns)
        whole = theirs.apply_chat_template(messages, tokenize=False)
        prompt = theirs.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        assert render("here", messages) == (prompt, whole[len(prompt) :])

    same()


def test_a_conversation_is_tokenised_with_its_special_tokens(
    with_template: Callable[[str], Path], json_lines: Lines
) -> None:
    tokenizer = load_tokenizer(str(with_template(TEMPLATES[0])))
    path = json_lines("chat.jsonl", {"messages": messages_of(("a", "b"), ("c", "d"))})
    prompt, answer = (tokens.tolist() for tokens in answers(path, tokenizer))
    assert (prompt.count(tokenizer.begin), prompt.count(tokenizer.end), answer.count(tokenizer.end)) == (1, 3, 1)
    assert answer[-1] == tokenizer.end
    assert prompt[0] == tokenizer.begin


def test_a_completion_is_an_answer(json_lines: Lines) -> None:
    first = json_lines("a.jsonl", {"input": "ab", "output": "cd"}, {"input": "", "output": "e"})
    second = json_lines("b.jsonl", {"prompt": "ab", "completion": "cd"}, {"prompt": "", "completion": "e"})
    read = [[tokens.tolist() for tokens in answers(path, BYTES)] for path in (first, second)]
    assert read[0] == read[1]


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
    tokenizer = load_tokenizer(str(with_template(TEMPLATES[2])))
    with pytest.raises(ValueError, match=why):
        list(answers(json_lines("chat.jsonl", {"messages": messages}), tokenizer))


def test_a_template_can_do_no_harm(with_template: Callable[[str], Path]) -> None:
    hostile = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(ValueError, match="the chat template refuses it"):
        renderer(load_tokenizer(str(with_template(hostile))))("here", messages_of(("a", "b")))
    with pytest.raises(ValueError, match="its chat template cannot be read"):
        renderer(load_tokenizer(str(with_template("{% if %}"))))


def test_conversations_need_a_template(json_lines: Lines) -> None:
    path = json_lines("chat.jsonl", {"messages": messages_of(("a", "b"))})
    with pytest.raises(ValueError, match="conversations need a chat template, and the tokenizer has none; put"):
        list(answers(path, BYTES))
