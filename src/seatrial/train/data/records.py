"""Prompts and answers: tables of `input` and `output`, or of `prompt`, `chosen` and `rejected`, and their like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from seatrial.records import DataError, forms
from seatrial.spec import Objective
from seatrial.train.data.examples import Piece
from seatrial.train.data.files import batched
from seatrial.train.data.indexed import Indexed
from seatrial.train.data.rows import Pieces
from seatrial.train.data.tokenizer import Tokenizer


def answers(path: Path, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Two sequences a record: begin and input, output and end. Of a conversation, its last answer is the output."""
    is_chat, records = forms.answers(path, tokenizer.template)  # a template has its own end of an answer
    for rows in batched(texts for _, texts in records):
        columns = [tokenizer.encode(column) for column in zip(*rows, strict=True)]
        for given, answer in zip(*columns, strict=True):
            yield _with_begin(given, tokenizer)
            yield answer if is_chat else np.append(answer, tokenizer.end)


def preferences(path: Path, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Four sequences a record: prompt and answer of the chosen, and of the rejected.

    A prompt is tokenised with its answer, as the model will see it; where their tokens merge, its last one belongs to
    the answer (TRL 0.10.1). Raises ValueError where the two answers change more of the prompt than that.
    """
    records = (texts for _, texts in forms.preferences(path))
    encoded = (tokens for rows in batched(records) for tokens in _encoded(rows, tokenizer))
    for number, (prompt, *whole) in enumerate(encoded):
        n = len(prompt)
        starts = [n if np.array_equal(prompt, tokens[:n]) else n - 1 for tokens in whole]
        first, second = (tokens[:start] for tokens, start in zip(whole, starts, strict=True))
        shared = min(len(first), len(second))
        if np.count_nonzero(first[:shared] != second[:shared]) > 1:
            why = "its two answers change how the prompt is tokenised, by more than its last token"
            raise DataError(f"{path}, record {number}: {why}", "end the prompt with a space or a line")
        for tokens, start in zip(whole, starts, strict=True):
            yield _with_begin(tokens[:start], tokenizer)
            ends = len(tokens) > start and tokens[-1] == tokenizer.end
            yield tokens[start:] if ends else np.append(tokens[start:], tokenizer.end)


def _encoded(rows: list[tuple[str, ...]], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, ...]]:
    """The tokens of each prompt alone, with the chosen answer, and with the rejected one."""
    prompts = tokenizer.encode([row[0] for row in rows])
    whole = [tokenizer.encode([row[0] + row[i] for row in rows]) for i in (1, 2)]
    yield from zip(prompts, *whole, strict=True)


def _with_begin(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    needs_one = tokenizer.begin is not None and (len(tokens) == 0 or tokens[0] != tokenizer.begin)
    return np.concatenate([[tokenizer.begin], tokens]) if needs_one else tokens


def answer_rows(indexed: Indexed, max_records: int | None, length: int, packing: bool) -> Pieces:
    """Records of `answers`, one a row, or in their order as many as fit; only answers are learnt."""
    given, learnt = (np.asarray(indexed.sizes[i::2], np.int64)[:max_records] for i in (0, 1))
    kept = np.flatnonzero((given <= length) & (given + learnt > 1))
    places = np.minimum(given + learnt - 1, length)[kept]
    firsts, room = [], 0
    for i, n in enumerate(places.tolist()):
        if n > room or not packing:
            firsts.append(i)
            room = length
        room -= n
    packs = np.split(kept, firsts[1:]) if firsts else []

    def pieces(row: int) -> list[Piece]:
        pairs = [(indexed[2 * i], indexed[2 * i + 1]) for i in packs[row].tolist()]
        return [(np.concatenate(pair), len(pair[0])) for pair in pairs]

    long, lost = int(np.sum(given + learnt > length + 1)), int(np.sum(given > length))
    note = (
        f"{long} of {len(given)} records are longer than {length} tokens: {long - lost} are cut at the end, "
        f"{lost} left out, because nothing of their answers would be left"
    )
    return Pieces(pieces, len(packs), length, notes=(note,) if long else ())


def preference_rows(indexed: Indexed, max_records: int | None, length: int, objective: Objective) -> Pieces:
    """Records of `preferences`: row 2i is the chosen, 2i + 1 the rejected answer to prompt i; at most T tokens each.

    Prompts are shortened only where the longer of the two answers does not fit, and only then answers (TRL 0.10.1).
    """
    asked = objective.max_prompt_length
    max_prompt = asked if asked is not None and asked < length else length // 2

    def pieces(row: int) -> list[Piece]:
        prompt, answer = indexed[2 * row], indexed[2 * row + 1]
        longer = int(indexed.sizes[[4 * (row // 2) + 1, 4 * (row // 2) + 3]].max())
        if len(prompt) + longer > length:
            prompt = prompt[-max_prompt:] if objective.truncation == "keep_end" else prompt[:max_prompt]
        if len(prompt) + longer > length:
            answer = answer[: length - max_prompt]
        return [(np.concatenate([prompt, answer]), len(prompt))]

    records = len(indexed) // 4
    return Pieces(pieces, 2 * min(records, max_records or records), length, group=2)
