"""Hugging Face's Trainer, and TRL, axolotl and ms-swift on top: `{'loss': 2.31, 'grad_norm': 1.25, 'epoch': 0.04}`.

Few of these lines say which step they are of; for the others it is the progress bar that was drawn before. Without
either there are no steps. Values are strings since version 5. No line says how long a step took.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from seatrial.logs.grammar import Family, Field, Found, Reading, note, read_values
from seatrial.logs.numbers import NUMBER

_FIELDS: Mapping[str, Field] = {
    "loss": Field(name="loss"),
    "grad_norm": Field(name="grad_norm"),
    "learning_rate": Field(name="learning_rate"),
    "ppl": Field(name="perplexity"),
    "tokens_per_second_per_gpu": Field(name="tokens_per_second_per_device"),
    "num_input_tokens_seen": Field(name="consumed_tokens"),
}

_DICT = re.compile(r"\{('(?:loss|eval_loss|train_runtime)': [^{}]{1,4000})\}")
_PAIR = re.compile(rf"'([^']{{1,60}})': '?({NUMBER})(?:/(\d+))?'?(?=,|$)", re.IGNORECASE)
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,300}\| *(\d+)/(\d+) \[")
_NO_DESCRIPTION = re.compile(r"(?:^|[\]}]:?|(?:^|\s)\d+:)\s*$")  # other bars say what they count: "Map:  50%|"

_EVAL = note("eval", "'eval_loss'", _DICT)
_END = note("end", "'train_runtime'", _DICT)
_START = note("start", "Total optimization steps", r"Total optimization steps = (?P<planned_steps>[\d,]+)")


class _Log:
    """The bar of the training, as it was drawn last."""

    def __init__(self) -> None:
        self._total: int | None = None  # the first bar is the training's; an evaluation counts to something else
        self._step: int | None = None

    def __call__(self, line: str) -> Iterator[Found]:
        if begun := _START.pattern.search(line):
            self._total, self._step = int(begun[1].replace(",", "")), None
        marks = [*_BAR.finditer(line), *_DICT.finditer(line)]
        for mark in sorted(marks, key=lambda found: found.start()):
            if mark.re is _DICT:
                yield from self._read_dict(mark[1])
            elif _NO_DESCRIPTION.search(line[max(0, mark.start() - 40) : mark.start()]):
                step, total = int(mark[1]), int(mark[2])
                if self._total is None:
                    self._total = total
                if total == self._total:
                    self._step = step

    def _read_dict(self, text: str) -> Iterator[Found]:
        found = list(_PAIR.finditer(text))
        pairs = {pair[1]: (pair[2], pair[3]) for pair in found}
        said, of = pairs.get("step") or pairs.get("global_step/max_steps") or (None, None)
        is_own = said is not None and said.isdigit()
        step = int(said) if said is not None and is_own else self._step
        total = int(of) if of else self._total
        if "train_runtime" in pairs:
            yield _END, {}
        elif "eval_loss" in pairs and step is not None:
            yield _EVAL, {"step": step, "loss": pairs["eval_loss"][0]}
        elif "loss" in pairs and step:
            values = read_values([(pair[1], pair[2]) for pair in found], _FIELDS).values
            yield Reading(values={"step": step, **({"total": total} if total else {}), **values}, inferred=not is_own)


FAMILY = Family(
    name="transformers",
    counted_from=1,
    custom_reader=_Log,
    custom_words=("{'loss': ", "{'eval_loss': ", "{'train_runtime': ", "%|", "Total optimization steps = "),
    notes=(
        _START,
        note(
            "facts", "Total train batch size", r"Total train batch size \([^)]{1,80}\) = (?P<global_batch_size>[\d,]+)"
        ),
    ),
)
