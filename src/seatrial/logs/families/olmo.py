"""OLMo and OLMo-core: `[step=12/739328,epoch=0]`, and below it a line a figure: `    train/CrossEntropyLoss=7.912`.

OLMo's other ranks print the first line alone, as OLMo-core does between two steps that have figures; it is then not
read. OLMo's rates are means over a window of steps; those of OLMo-core are of the step. Its MFU is in percent.
OLMo goes on for `extra_steps_after_cancel` steps when it is asked to stop, which it may ask itself at its last step;
without a `stop_at`, it stops 10 steps behind that. Before 2024-04 its first line had no epoch.
"""

from __future__ import annotations

import re

from seatrial.logs.grammar import Family, Field, note

# Both print at least four digits, as many decimals as that takes; a number with fewer was cut. 9.9996 is 10.000.
_VALUE = (
    r"-?(?:0\.\d{4}|[1-9]\.\d{3,4}|\d\d\.\d\d|\d{3}\.\d|10\.000|100\.00|1000(?:\.0)?|\d{1,3}(?:,\d{3})+|0\.0"
    r"|\d(?:\.\d+)?[eE][-+]\d\d|\d+\.\d+[BTPE]|nan|inf(?:inity)?)"
)
_LOSS, _TOKENS = Field(name="loss"), Field(name="tokens_per_second_per_device")

FAMILY = Family(
    name="olmo",
    anchors=("[step=",),
    head=re.compile(
        r"\[step=(?P<step>\d+)/(?:(?P<total>\d+)|\?\?\?)(?:,epoch=\d+(?:,eta=[^\]]{0,60})?)?\]\s*$"
    ),
    pair=re.compile(rf"([a-zA-Z]\w+/[^=]{{1,80}})=({_VALUE})(?=\s*$)", re.IGNORECASE),
    fields={
        "train/CrossEntropyLoss": _LOSS,
        "train/CE loss": _LOSS,
        **dict.fromkeys(("train/Perplexity", "train/PPL"), Field(name="perplexity")),
        **dict.fromkeys(("optim/total_grad_norm", "optim/total grad norm"), Field(name="grad_norm")),
        **dict.fromkeys(("optim/LR (group 0)", "optim/LR"), Field(name="learning_rate")),
        "optim/step skipped": Field(name="skipped_steps"),
        **dict.fromkeys(("throughput/device/tokens_per_second", "throughput/device/TPS"), _TOKENS),
        **dict.fromkeys(
            ("throughput/device/batches_per_second", "throughput/device/BPS"), Field(name="steps_per_second")
        ),
        "throughput/device/MFU": Field(name="mfu", per=100),
        "throughput/total_tokens": Field(name="consumed_tokens"),
        "System/Peak GPU Memory (MB)": Field(name="memory_bytes", per=1e-6),
        "gpu_memory/GPU reserved mem (%)": Field(name="memory_fraction", per=100),
    },
    counted_from=1,
    extra_steps=10,
    continued=re.compile(r"\s+(?:train|optim|throughput|gpu_memory|System|checkpoint|data)/[^=]{1,80}="),
    notes=(
        note("start", "Training for ", r"\bTraining for (?P<planned_steps>[\d,]+) steps\s*$"),
        note("start", "Peak GPU Memory (MB) before ", r"Peak GPU Memory \(MB\) before \w+: "),
        note("facts", "extra_steps_after_cancel=", r"\bextra_steps_after_cancel=(?P<extra_steps>\d{1,6})\b"),
        note("facts", ", Device peak Flops/s: ", r"Device: (?P<device_kind>.{1,80}?), Device peak Flops/s: "),
        note("checkpoint", "heckpoint saved to ", r"\bCheckpoint saved to \S*/step(?P<step>\d+)\s*$"),
        note("checkpoint", "Checkpoint for step ", r"Checkpoint for step (?P<step>\d+) saved successfully"),
        note("checkpoint", "Will resume training from step ",
             r"Will resume training from step (?P<step>[1-9]\d{0,11}), epoch ", action="restore"),
        note("end", "Training complete", r"(?:\tINFO\t|, rank=\d+\] )Training complete\s*$"),
    ),
)  # fmt: skip
