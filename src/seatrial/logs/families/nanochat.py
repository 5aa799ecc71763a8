"""nanochat's base_train: `step 00012/21400 (0.06%) | loss: 7.912345 | lrm: 1.00 | dt: 331.20ms | tok/sec: 1,583,000 …`.

Steps count from 0. The loss is a running mean, so that after one NaN all are. The MFU is in percent without a sign, of
the GPU's peak in bfloat16. The tokens/s are those of the time and of all devices, and say nothing more. The lines of
chat_sft and mid_train have no total: `nanochat_mid` reads them.
"""

from __future__ import annotations

import re

from seatrial.logs.grammar import Family, Field, note
from seatrial.logs.numbers import NUMBER

DONE = re.compile(r"(?:^|\s)Total training time: [\d.]+m\s*$")
# Of a GPU that it does not know, it is 0.
_MFU = Field(name="mfu", per=100, missing=frozenset({0.0}))

FAMILY = Family(
    name="nanochat",
    anchors=("step ", "| loss: ", "| dt: ", "| tok/sec: "),
    head=re.compile(r"\bstep (?P<step>\d+)/(?P<total>\d+) \(\d+\.\d+%\) \| (?=loss: )"),
    pair=re.compile(rf"\b([a-z]\w*(?: norm)?): ({NUMBER})(?=(?:ms|\*)? \|)", re.IGNORECASE),
    whole=re.compile(r"\| dt: [\d.]+ms \|"),
    fields={
        "loss": Field(name="loss"),
        "dt": Field(name="seconds", per=1000),
        **dict.fromkeys(("grad norm", "grad_norm"), Field(name="grad_norm")),
        **dict.fromkeys(("mfu", "bf16_mfu"), _MFU),
    },
    counted_from=0,
    notes=(
        note("start", "=> gradient accumulation steps: ",
             r"Total batch size (?P<tokens_per_step>[\d,]+) => gradient accumulation steps: "
             r"(?P<accumulation_steps>\d+)"),
        note("start", "| Peak FLOPS (", r"GPU: (?P<device_kind>.{1,80}?) \| Peak FLOPS \("),
        note("start", "Distributed world size: ", r"Distributed world size: (?P<num_devices>\d+)\s*$"),
        note("eval", "| Validation bpb: ", r"\bStep (?P<step>\d+) \| Validation bpb: "),  # bits per byte, no loss
        note("checkpoint", "Saved model ", r"Saved model (?:parameters|file) to: \S*/model_(?P<step>\d+)\.pt\s*$"),
        note("checkpoint", "Resuming optimization from step ",
             r"Resuming optimization from step (?P<step>[1-9]\d{0,11})\s*$", action="restore"),
        note("end", "Total training time: ", DONE),
    ),
)  # fmt: skip
