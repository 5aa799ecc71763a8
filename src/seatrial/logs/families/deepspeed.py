"""DeepSpeed alone: `[Rank 0] step=10, skipped=0, lr=[3e-05], mom=[(0.9, 0.95)]`.

Its engine for pipelines adds `steps: 10 loss: 7.9123 iter time (s): 3.412 samples/sec: 75.030`; the other one has no
loss, and a line with samples/s of the whole job, of the last step. Beside Megatron or Hugging Face, which print the
same steps with more about them, only that rate counts. The skipped steps are counted from the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import Family, Field, Found, Reading, note, read_values
from seatrial.logs.numbers import NUMBER

_STEP = re.compile(
    rf"\[Rank 0\] step=(?P<step>\d{{1,12}}), skipped=(?P<skipped>\d{{1,12}}), lr=\[(?:(?P<lr>{NUMBER})(?=[],]))?"
)
_RATE = {"lr": Field(name="learning_rate")}
_WITH_LOSS = re.compile(r"(?:^|[\s\]:])steps: (?P<step>\d+) (?=loss: )")


class _Log:
    """The steps that were skipped up to the last line."""

    def __init__(self) -> None:
        self._skipped = 0

    def __call__(self, line: str) -> Iterator[Found]:
        if found := _STEP.search(line):
            skipped = int(found["skipped"])
            values = {"step": int(found["step"]), "skipped_steps": max(0, skipped - self._skipped)}
            self._skipped = skipped
            rate = read_values([("lr", found["lr"] or "")], _RATE).values
            yield Reading(values={**values, **rate}, spans=((*found.span("step"), "step", None),))


FAMILY = Family(
    name="deepspeed",
    # The step may have no other line than that with the loss.
    anchors=("steps: ", "loss: ", "iter time (s): "),
    head=_WITH_LOSS,
    pair=re.compile(
        rf"\b([A-Za-z][\w/ ]{{0,30}}?(?: \(s\))?)[:=] ?({NUMBER}(?=[ ,]|GB\b)|(?<=samples/sec: )\d+\.\d{{3}}(?=\s*$))",
        re.IGNORECASE,
    ),
    whole=re.compile(r"\biter time \(s\): \S+ "),
    fields={
        "loss": Field(name="loss"),
        "iter time (s)": Field(name="seconds"),
        **dict.fromkeys(("samples/sec", "CurrSamplesPerSec"), Field(name="samples_per_second_total")),
        "MaxMemAllocated": Field(name="memory_bytes", per=2.0**-30),
    },
    counted_from=1,
    fallback=True,
    loss_optional=True,
    continued=re.compile(r".{0,200}?\bglobal_step=\d+, RunningAvgSamplesPerSec="),
    custom_reader=_Log,
    custom_words=("[Rank 0] step=",),
    notes=(
        note("figures", "CurrSamplesPerSec=", rf"CurrSamplesPerSec=(?P<samples_per_second_total>{NUMBER})(?=,)"),
    ),
)  # fmt: skip
