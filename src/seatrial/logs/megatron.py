"""Megatron-LM and its relatives: ` iteration 5/ 50 | elapsed time per iteration (ms): 654.5 | lm loss: 1.1E+01 | …`.

The last rank prints, or the first; the figures are means over `--log-interval` iterations. A loss that is NaN is left
out of the line.
"""

from __future__ import annotations

import re

from seatrial.logs.grammar import Family, Field, Note
from seatrial.logs.numbers import NUMBER

FAMILY = Family(
    name="megatron",
    anchors=("iteration", "elapsed time per iteration"),
    head=re.compile(r"\biteration\s+(?P<step>\d+)\s*/\s*(?P<total>\d+)\s*\|"),
    pair=re.compile(r"([^|:]+):([^|]*)"),
    fields={
        "elapsed time per iteration (ms)": Field(name="seconds", per=1000),
        "throughput per GPU (TFLOP/s/GPU)": Field(name="tflops_per_second_per_device"),
        "consumed samples": Field(name="consumed_samples"),
        "learning rate": Field(name="learning_rate"),
        "global batch size": Field(name="global_batch_size"),
        "lm loss": Field(name="loss"),
        "loss scale": Field(name="loss_scale"),
        "grad norm": Field(name="grad_norm"),
        "params norm": Field(name="params_norm"),
        "mem usages": Field(name="memory_fraction"),
        "number of skipped iterations": Field(name="skipped_steps"),
        "number of nan iterations": Field(name="nan_steps"),
    },
    counted_from=1,
    notes=(
        Note(
            means="end",
            literal="[after training is done] datetime:",
            pattern=re.compile(r"\[after training is done\] datetime:"),
        ),
        Note(
            means="facts",
            literal="seq_length ..",
            pattern=re.compile(rf"\bseq_length \.+ (?P<sequence_length>{NUMBER})\s*$"),
        ),
    ),
)
