"""llm.c: `step   12/18865 | loss 7.912345 (+0.21z)| norm 1.2345 (-0.30z)| lr 1.20e-05 | 331.20 ms | 55.2% bf16 MFU …`.

Its trainers in C, CUDA and Python since 2024-04, whose older lines are `step 12/74: train loss 4.367857 (80.64 ms,
50849 tok/s)`. Every one has a total. The time of a step has no key, only the mark before it and its unit behind it. The
tokens/s of all devices are a running mean.
"""

from __future__ import annotations

import re

from seatrial.logs.grammar import Family, Field, note
from seatrial.logs.numbers import NUMBER

_SECONDS = Field(name="seconds", per=1000)

FAMILY = Family(
    name="llmc",
    anchors=("step ", "loss ", " ms", " tok/s"),
    head=re.compile(r"\bstep +(?P<step>\d+)/(?P<total>\d+)(?=(?: \||:) (?:train )?loss )"),
    pair=re.compile(rf"(\b(?:loss|norm|lr)(?= +\S+ ?[(|nl])|[|(](?= ?\d[\d.]* ms\b)) *({NUMBER})", re.IGNORECASE),
    whole=re.compile(r"[|(] ?\d[\d.]* ms\b"),
    fields={
        "loss": Field(name="loss"),
        "norm": Field(name="grad_norm"),
        "lr": Field(name="learning_rate"),
        "|": _SECONDS,
        "(": _SECONDS,
    },
    counted_from=1,
    notes=(
        note("start", " and total_batch_size=",
             r"batch_size B=(?P<micro_batch_size>\d+) \* seq_len T=(?P<sequence_length>\d+) \* "
             r"num_processes=(?P<num_devices>\d+) and total_batch_size=(?P<tokens_per_step>\d+)\s*$"),
        note("start", "| train_num_batches ", r"\| train_num_batches +\| (?P<planned_steps>\d+) +\|"),
        note("start", "| device ", r"\| device +\| (?P<device_kind>\S.{0,80}?) +\|\s*$"),
        note("eval", "val loss ", r"(?:^|\s)val loss (?P<loss>\d+\.\d{6,}|-?nan|inf)\s*$"),
        note("checkpoint", "Writing checkpoint at step ", r"Writing checkpoint at step (?P<step>\d+)\s*$"),
        note("end", "total average iteration time: ", r"total average iteration time: -?(?:[\d.]+|nan|inf) ms"),
    ),
)  # fmt: skip
