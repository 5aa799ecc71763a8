"""Composer and LLM Foundry: `[batch=12/4800]:`, and below it a line a figure: `	 Train loss/train/total: 2.1040`.

Where the run is planned in epochs, tokens or samples, the first line counts these; `time/batch` is then the number of
steps before this one. Rates are means over a window of steps, memory is in units of 10^9 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import UNKNOWN_STEP, Family, Field, Found, Reading, note, stateless

GIGABYTE = 1e-9
_LOSS = r"-?(?:\d+\.\d{4}|nan|inf(?:inity)?)"  # four decimals, or it was cut

_HEAD = re.compile(
    r"(?P<epoch>\[epoch=\d+\])?\[(?P<unit>batch|token|sample|iteration)=(?P<n>\d{1,15})(?:/(?P<of>\d{1,15}))?\]:\s*$"
)


def _read(line: str) -> Iterator[Found]:
    """The first line of a step, which says its number only where the run is planned in steps."""
    if found := _HEAD.search(line):
        in_steps = found["unit"] == "batch" and not found["epoch"]
        total = {"total": int(found["of"])} if in_steps and found["of"] else {}
        yield Reading(values={"step": int(found["n"]) if in_steps else UNKNOWN_STEP, **total})


FAMILY = Family(
    name="composer",
    pair=re.compile(rf"\bTrain (time/\w+(?=: \d+\s*$)|\S+(?=: {_LOSS}\s*$)): (\S+)", re.IGNORECASE),
    fields={
        "loss/train/total": Field(name="loss"),
        "l2_norm/grad/global": Field(name="grad_norm"),
        "throughput/batches_per_sec": Field(name="steps_per_second"),
        "throughput/samples_per_sec": Field(name="samples_per_second_total"),
        "throughput/device/tokens_per_sec": Field(name="tokens_per_second_per_device"),
        "throughput/device/flops_per_sec": Field(name="tflops_per_second_per_device", per=1e12),
        "throughput/device/mfu": Field(name="mfu"),
        "memory/peak_reserved_mem": Field(name="memory_bytes", per=GIGABYTE),
        "time/batch": Field(name="step", plus=1),
    },
    counted_from=1,
    custom_reader=stateless(_read),
    custom_words=("[batch=", "[epoch=", "[token=", "[sample=", "[iteration="),
    continued=re.compile(r"\s*Train [\w/. -]{1,150}: "),
    notes=(
        note("start", "Setting seed to ", r"composer\.utils\.reproducibility: Setting seed to \d+"),
        note("eval", "Eval metrics/", rf"\bEval metrics/\S{{1,80}}/LanguageCrossEntropy: (?P<loss>{_LOSS})\s*$"),
    ),
)
