"""Nanotron: `iteration: 12 / 100 | consumed_tokens: 25.2M | elapsed_time_per_iteration_ms: 2.53K | lm_loss: 3.21 | …`.

Every number has three digits, so that 1024 sequences are "1.02K": a batch is not read from it. The line does not close,
so that its last value may be cut: it counts only as a gradient norm, with which older versions end.
"""

from __future__ import annotations

import re

from seatrial.logs.grammar import Family, Field

FAMILY = Family(
    name="nanotron",
    anchors=("iteration: ", "consumed_tokens: "),
    head=re.compile(r"\biteration: (?P<step>\d+) / (?P<total>\d+) \|"),
    pair=re.compile(r"(\w+(?=: \S+ \|)|grad_norm): ([^|\s]+)(?= \||\s*$)"),
    whole=re.compile(r"\blm_loss: \S+ \|"),
    fields={
        "elapsed_time_per_iteration_ms": Field(name="seconds", per=1000),
        "time_per_iteration_ms": Field(name="seconds", per=1000),
        "tokens_per_sec_per_gpu": Field(name="tokens_per_second_per_device"),
        "model_tflops_per_gpu": Field(name="tflops_per_second_per_device"),
        "lm_loss": Field(name="loss"),
        "lr": Field(name="learning_rate"),
        "grad_norm": Field(name="grad_norm"),
        "cuda_max_memory_reserved": Field(name="memory_bytes"),
    },
    counted_from=1,
)
