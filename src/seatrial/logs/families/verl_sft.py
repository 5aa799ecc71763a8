"""verl's supervised fine-tuning: `step:12 - train/loss:2.104 - train/lr(1e-3):0.009 - train/time(s):3.412`.

The order and number of the pairs changes between versions. Its MFU may be above 1, and is not read. How many steps are
planned is said by `Total training steps`, or else by the progress bar of an epoch: `Epoch 1/6:  50%|██   | 31/62 [`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.families import verl
from seatrial.logs.grammar import FACTS, Family, Field, Found, note, stateless
from seatrial.logs.numbers import NUMBER

_DRAWN = re.compile(
    r"(?:^|\s)Epoch \d{1,6}/(?P<epochs>\d{1,6}): +\d{1,3}%\|[^|]{0,300}\| *\d{1,9}/(?P<steps>[1-9]\d{0,8}) \["
)


def _read(line: str) -> Iterator[Found]:
    for drawn in _DRAWN.finditer(line):
        yield FACTS, {"planned_by__verl_sft": int(drawn["epochs"]) * int(drawn["steps"])}


FAMILY = Family(
    name="verl_sft",
    anchors=("step:", " - train/loss:"),
    head=re.compile(r"\bstep:(?P<step>\d+) - "),
    pair=verl.PAIR,
    whole=re.compile(r"(?<= - )train/loss:(?:\S+ - |\d+\.\d{3,}\s*$|-?(?:nan|inf(?:inity)?)\s*$)", re.IGNORECASE),
    fields={
        "train/loss": Field(name="loss"),
        "train/grad_norm": Field(name="grad_norm"),
        "train/lr": Field(name="learning_rate"),
        "train/lr(1e-3)": Field(name="learning_rate", per=1000),
        "train/time(s)": Field(name="seconds"),
    },
    counted_from=1,
    custom_reader=stateless(_read),
    custom_words=("Epoch ",),
    notes=(
        note(
            "eval",
            " - val/loss:",
            r"\bstep:(?P<step>\d+) - (?:\S{1,120} - ){0,200}?"
            rf"val/loss:(?P<loss>\d+\.\d{{3,}}|nan|inf|{NUMBER}(?= - ))",
        ),
    ),
)
