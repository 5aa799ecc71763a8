"""nanoGPT: `iter 250: loss 2.1040, time 44.51ms, mfu 12.45%`, and `step 250: train loss 2.0975, val loss 2.1171`.

Iterations count from 0, and `max_iters` is the number of the last one. The time is that of this iteration alone, with
the evaluation that may come before it; the MFU is of an A100 and a running mean, -100% until there is one.
A fork prints `loss 3.0340 BPC`, in bits: the loss is what the log says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import START, Family, Field, Found, note
from seatrial.logs.numbers import NUMBER

_OVERRIDING = re.compile(r"Overriding: max_iters = (\d+)\s*$")
_OF_A_FILE = re.compile(r"\s*max_iters\s*=\s*(\d+)\s*(?:#.*)?$")
# Four decimals, or it was cut.
_LOSS = r"\d+\.\d{4}\b|nan\b|inf\b"
_UNIT = r"(?: BPC)?"  # bits per character, in forks


class _Configuration:
    """Reads the number of planned iterations: the configuration file is printed as it is, then each argument."""

    def __init__(self) -> None:
        self._prints_file = False

    def __call__(self, line: str) -> Iterator[Found]:
        if "Overriding config with " in line:
            self._prints_file = True
        found = _OVERRIDING.search(line) or (_OF_A_FILE.match(line) if self._prints_file else None)
        if found:
            yield START, {"planned_steps": int(found[1]) + 1}


FAMILY = Family(
    name="nanogpt",
    anchors=("iter ", ": loss ", ", time "),
    head=re.compile(r"\biter (?P<step>\d+): (?=loss )"),
    pair=re.compile(rf"\b(\w+) ({NUMBER}(?={_UNIT},| ?ms\b)|{NUMBER}%)", re.IGNORECASE),
    whole=re.compile(r", time [\d.]+ ?ms\b"),
    fields={
        "loss": Field(name="loss"),
        "time": Field(name="seconds", per=1000),
        "mfu": Field(name="mfu", missing=frozenset({-1.0})),
        "ppl": Field(name="perplexity"),
    },
    counted_from=0,
    custom_reader=_Configuration,
    custom_words=("Overriding config with ", "max_iters"),
    notes=(
        note("start", "tokens per iteration will be: ",
             r"tokens per iteration will be: (?P<tokens_per_step>[\d,]+)\s*$"),
        # From its checkpoint, of a step that it does not name.
        note("checkpoint", "Resuming training from ", r"Resuming training from (?=\S)(?!step\b)", action="restore"),
        note("eval", ", val loss ", rf"\bstep (?P<step>\d+): train loss \S+{_UNIT}, val loss (?P<loss>{_LOSS})"),
    ),
)  # fmt: skip
