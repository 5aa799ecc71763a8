"""Prompts and answers → tokens, by whichever fields a record has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.records.chat import template_of
from seatrial.train.data.records import answers
from seatrial.train.data.tokenizer import BYTES, load_tokenizer
from tests.helpers.record_files import TEMPLATES, messages_of

Lines = Callable[..., Path]


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


def test_conversations_need_a_template(json_lines: Lines) -> None:
    path = json_lines("chat.jsonl", {"messages": messages_of(("a", "b"))})
    with pytest.raises(ValueError, match="conversations need a chat template, and the tokenizer has none; put"):
        list(answers(path, BYTES))


def test_the_template_is_the_one_that_check_reads(with_template: Callable[[str], Path]) -> None:
    folder = str(with_template(TEMPLATES[0]))
    assert load_tokenizer(folder).template == template_of(folder)
