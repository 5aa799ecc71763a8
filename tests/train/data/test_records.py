"""Prompts and answers: what is learnt, how it is packed and cut, and preferences as TRL 0.10.1 tokenises them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.spec import Data, Evaluation, Objective
from seatrial.train.data import make_sources
from seatrial.train.data.indexed import in_memory
from seatrial.train.data.records import answer_rows, preference_rows, preferences
from seatrial.train.data.tokenizer import Tokenizer, load_tokenizer
from tests.helpers.trainer import TINY, make_spec
from tests.helpers.training_data import make_source

BEGIN, END = 0xFE, 0xFF


def record_spec(path: Path, length: int, kind: str = "sft", objective=None, **data):
    spec = make_spec(model=replace(TINY, vocab_size=512))
    return replace(
        spec,
        batch=replace(spec.batch, sequence_length=length),
        objective=Objective(kind=kind, **objective or {}),
        data=Data(kind="records", paths=(str(path),), **data),
    )


def by_tokens(example):
    order = np.lexsort(example["tokens"].T[::-1])
    return {name: values[order].tolist() for name, values in example.items()}


def test_only_answers_are_learnt(json_lines):
    path = json_lines("a.jsonl", {"input": "abc", "output": "de"}, {"input": "", "output": "xyz"})
    source = make_source(record_spec(path, 8))
    assert source.num_examples == 2
    got = by_tokens(source.examples(np.arange(2)))
    assert got["tokens"] == [[BEGIN, *b"abcde", 0, 0], [BEGIN, *b"xyz", 0, 0, 0, 0]]
    assert got["targets"] == [[*b"abcde", END, 0, 0], [*b"xyz", END, 0, 0, 0, 0]]
    assert got["weights"] == [[0, 0, 0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]]
    assert set(got) == {"tokens", "targets", "weights"}


def test_packed_records_are_whole_and_apart(json_lines):
    path = json_lines(
        "a.jsonl", *({"input": "ab", "output": letter} for letter in "cdef"), {"input": "a", "output": ""}
    )
    source = make_source(record_spec(path, 9, packing=True))
    got = by_tokens(source.examples(np.arange(source.num_examples)))
    rows = {tuple(row): i for i, row in enumerate(got["tokens"])}
    i = rows[(BEGIN, *b"abc", BEGIN, *b"abd", 0)]
    assert got["targets"][i] == [*b"abc", END, *b"abd", END, 0]
    assert got["weights"][i] == [0, 0, 1, 1, 0, 0, 1, 1, 0]
    assert got["positions"][i] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert got["segments"][i] == [1, 1, 1, 1, 2, 2, 2, 2, 0]


@settings(max_examples=200)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=30),
    length=st.integers(2, 20),
)
def test_packing_is_next_fit_and_loses_nothing_that_fits(sizes, length):
    number, parts, records = 1, [], []
    for given_, learnt in sizes:
        tokens = np.arange(number, number + given_ + learnt)
        number += given_ + learnt
        parts += [tokens[:given_], tokens[given_:]]
        if given_ <= length and given_ + learnt > 1:
            records.append((tokens[: length + 1], given_))
    rows = answer_rows(in_memory(parts), None, length, packing=True)
    expected, room = [], 0
    for tokens, given_ in records:
        if len(tokens) - 1 > room:
            expected.append([])
            room = length
        room -= len(tokens) - 1
        expected[-1] += [(t, g, i >= given_) for i, (t, g) in enumerate(pairwise(tokens.tolist()), 1)]
    assert rows.count == len(expected)
    assert bool(rows.notes) == any(given_ + learnt > length + 1 for given_, learnt in sizes)
    if rows.count:
        got = rows.take(np.arange(rows.count))
        for i, pack in enumerate(expected):
            padded = [*pack, *[(0, 0, False)] * (length - len(pack))]
            np.testing.assert_array_equal(got["tokens"][i], [t for t, _, _ in padded])
            np.testing.assert_array_equal(got["targets"][i], [g for _, g, _ in padded])
            np.testing.assert_array_equal(got["weights"][i], [float(w) for _, _, w in padded])


def test_records_that_are_too_long_are_counted(json_lines):
    path = json_lines(
        "a.jsonl",
        {"input": "ab", "output": "c" * 50},
        {"input": "a" * 50, "output": "b"},
        {"input": "a", "output": "b"},
    )
    sources = make_sources(record_spec(path, 8))
    assert sources.train.num_examples == 2
    assert sources.notes == (
        "2 of 3 records are longer than 8 tokens: 1 are cut at the end, "
        "1 left out, because nothing of their answers would be left",
    )
    assert make_sources(record_spec(path, 8, max_examples=1)).train.num_examples == 1


@pytest.mark.parametrize("case", json.loads((Path(__file__).parent / "preferences_trl.json").read_text())["cases"])
def test_preferences_are_tokenised_and_cut_as_in_trl(tmp_path, case):
    characters = Tokenizer(
        "characters", 128, 1, 2, lambda texts: [np.array([ord(c) for c in text], np.int64) for text in texts]
    )
    (tmp_path / "a.jsonl").write_text(json.dumps({name: case[name] for name in ("prompt", "chosen", "rejected")}))
    objective = Objective(kind="dpo", max_prompt_length=case["max_prompt_length"], truncation=case["truncation_mode"])
    indexed = in_memory(preferences(tmp_path / "a.jsonl", characters))
    rows = preference_rows(indexed, None, case["max_length"], objective)
    got = rows.take(np.arange(rows.count))
    for row, side in enumerate(("chosen", "rejected")):
        tokens, labels = case["result"][f"{side}_input_ids"], case["result"][f"{side}_labels"]
        n = len(tokens) - 1
        assert got["tokens"][row].tolist() == tokens[:-1] + [0] * (case["max_length"] - n)
        counted = got["weights"][row] > 0
        assert got["targets"][row][counted].tolist() == [label for label in labels if label != -100]
        assert counted.tolist() == [label != -100 for label in labels[1:]] + [False] * (case["max_length"] - n)


def test_the_two_answers_to_a_prompt_stay_side_by_side(json_lines):
    letters = "abcdefghij"
    path = json_lines("a.jsonl", *({"prompt": c, "chosen": "+" + c, "rejected": "-" + c} for c in letters))
    source = make_source(record_spec(path, 8, "dpo"))
    assert source.num_examples == 20
    for epoch in range(2):
        tokens = source.examples(epoch * 20 + np.arange(20))["tokens"]
        assert sorted(bytes(row[1:4].astype(np.uint8)).decode() for row in tokens[0::2]) == [
            f"{c}+{c}" for c in letters
        ]
        np.testing.assert_array_equal(tokens[0::2, [1, 3]], tokens[1::2, [1, 3]])
        assert set(tokens[1::2, 2]) == {ord("-")}


@pytest.mark.parametrize("kind", ["dpo", "orpo"])
def test_the_two_answers_stay_side_by_side_where_weights_mix_the_files(tmp_path, json_lines, kind):
    for name, letters in {"a": "abcdefghij", "b": "klmnopqrst"}.items():
        json_lines(f"{name}.jsonl", *({"prompt": c, "chosen": "+" + c, "rejected": "-" + c} for c in letters))
    paths = tuple(str(tmp_path / f"{name}.jsonl") for name in "ab")
    spec = record_spec(tmp_path, 8, kind)
    spec = replace(spec, data=replace(spec.data, paths=paths, weights=(3.0, 1.0), split="80,20"))
    sources = make_sources(replace(spec, evaluation=Evaluation(interval_steps=1, batches=1)))
    for source, seen in ((sources.train, {*"abcdefgh", *"klmnopqr"}), (sources.validation, {*"ij", *"st"})):
        tokens = source.examples(np.arange(3 * 16))["tokens"]
        np.testing.assert_array_equal(tokens[0::2, [1, 3]], tokens[1::2, [1, 3]])
        assert set(tokens[0::2, 2]) == {ord("+")}
        assert set(tokens[1::2, 2]) == {ord("-")}
        assert set(map(chr, tokens[:, 1])) <= seen
    drawn = sources.train.examples(np.arange(2 * 16))["tokens"]
    assert np.sum(drawn[:, 1] <= ord("j")) == 24


def test_a_prompt_whose_last_token_merges_with_the_answer(json_lines, bpe):
    """Against the tokenizer itself: what is learnt is the answer's part of the tokens of both."""
    path = json_lines("a.jsonl", {"prompt": "the do", "chosen": "g sleeps", "rejected": "t"})
    tokenizer = load_tokenizer(str(bpe))
    prompt, both, other = (tokens.tolist() for tokens in tokenizer.encode(["the do", "the dog sleeps", "the dot"]))
    assert both[: len(prompt)] != prompt  # " dog" is one token
    got = make_source(record_spec(path, 16, "dpo", tokenizer=str(bpe))).examples(np.arange(2))
    shared = len(prompt) - 1
    assert got["targets"][0][got["weights"][0] > 0].tolist() == [*both[shared:], 1]
    assert got["tokens"][0].tolist()[: len(both) + 1] == [0, *both]
    start = len(prompt) if other[: len(prompt)] == prompt else shared
    assert got["targets"][1][got["weights"][1] > 0].tolist() == [*other[start:], 1]

    path = json_lines("b.jsonl", {"prompt": "the la", "chosen": "zy dog", "rejected": "ugh"})
    with pytest.raises(ValueError, match="record 0: its two answers change how the prompt is tokenised"):
        make_source(record_spec(path, 16, "dpo", tokenizer=str(bpe)))


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        ({"input": "a"}, "sft", "line 1: has no text in 'output'; there are input"),
        ({"prompt": "a", "chosen": "b"}, "dpo", "line 1: has no text in 'rejected'"),
        ({"prompt": "a", "chosen": "b", "rejected": None}, "orpo", "line 1: has 'None' instead of text in 'rejected'"),
        ({"input": "a" * 100, "output": "b"}, "sft", "less than one sequence of 8"),
    ],
)
def test_what_cannot_serve_is_named(json_lines, row, kind, message):
    with pytest.raises(ValueError, match=message):
        make_source(record_spec(json_lines("a.jsonl", row), 8, kind))
