"""MaxText and MaxDiffusion: `completed step: 49, seconds: 7.908, TFLOP/s/device: 460.480, …`.

Process 0 prints, by print() until 2025 and by absl's logging since. The time is taken before the device is waited for,
so that the first steps may be far too fast; the figures count padding, `total_weights` does not.
"""

from __future__ import annotations

import re

from seatrial.logs.grammar import Family, Field, Note
from seatrial.logs.numbers import NUMBER

_TFLOPS = Field(name="tflops_per_second_per_device")

FAMILY = Family(
    name="maxtext",
    anchors=("completed ", "step: "),
    head=re.compile(
        r"(?P<batch_rampup>\[Rampup Batch Size Phase\], )?\bcompleted (?P<profiler>profiler activation/deactivation )?"
        r"step: (?P<step>\d+)"
    ),
    pair=re.compile(rf"([A-Za-z_][\w /]*?)[:=] ?({NUMBER})(?=[,\s]|$)", re.IGNORECASE),
    fields={
        "seconds": Field(name="seconds"),
        "TFLOP/s/device": _TFLOPS,
        "TFLOP/s": _TFLOPS,  # until 2024-03; of a device, too
        "Tokens/s/device": Field(name="tokens_per_second_per_device"),
        "total_weights": Field(name="tokens"),
        "loss": Field(name="loss"),
        "lm_loss": Field(name="loss"),
        "perplexity": Field(name="perplexity"),
        "grad_norm": Field(name="grad_norm"),
    },
    counted_from=0,
    notes=(
        Note(
            means="facts",
            literal="Config param steps:",
            pattern=re.compile(r"Config param steps: (?P<planned_steps>\d+)\s*$"),
        ),
        Note(
            means="facts",
            literal="Config param global_batch_size_to_train_on:",
            pattern=re.compile(r"global_batch_size_to_train_on: (?P<global_batch_size>\d+)\s*$"),
        ),
        Note(
            means="facts",
            literal="Config param max_target_length:",
            pattern=re.compile(r"max_target_length: (?P<sequence_length>\d+)\s*$"),
        ),
        Note(
            means="facts",
            literal="Config param model_name:",
            pattern=re.compile(r"model_name: (?P<model>[\w.-]+)\s*$"),
        ),
        Note(
            means="start",
            literal="System Information: Jax Version:",
            pattern=re.compile(r"Jax Version: (?P<jax>[\w.+-]+)"),
        ),
        Note(
            means="facts",
            literal="System Information: Jaxlib Version:",
            pattern=re.compile(r"Jaxlib Version: (?P<jaxlib>[\w.+-]+)"),
        ),
        Note(
            means="facts",
            literal="System Information: Jax Backend:",
            pattern=re.compile(r"Jax Backend: (?P<backend>.+?)\s*$"),
        ),
        Note(
            means="facts",
            literal="Num_devices: ",
            pattern=re.compile(r"Num_devices: (?P<num_devices>\d+), shape"),
        ),
        Note(
            means="facts",
            literal="Total TFLOPs: ",
            pattern=re.compile(rf"Total TFLOPs: (?P<tflop_per_step_per_device>{NUMBER})"),
        ),
        Note(
            means="eval",
            literal="eval metrics after step: ",
            pattern=re.compile(rf"eval metrics after step: (?P<step>\d+), loss=(?P<loss>{NUMBER})"),
        ),
        Note(
            means="eval",
            literal="Completed eval after train step ",
            pattern=re.compile(rf"Completed eval after train step (?P<step>\d+), loss=(?P<loss>{NUMBER})"),
        ),
        Note(
            means="checkpoint",
            literal="Saved a checkpoint at step ",
            pattern=re.compile(r"Saved a checkpoint at step (?P<step>\d+)"),
        ),
        Note(
            means="checkpoint",
            literal="Started an asynchronous checkpoint save for step ",
            pattern=re.compile(r"Started an asynchronous checkpoint save for step (?P<step>\d+)"),
        ),
        Note(
            means="checkpoint",
            action="restore",
            literal="restoring from this run's directory step ",
            pattern=re.compile(r"restoring from this run's directory step (?P<step>\d+)"),
        ),
        # What the CVS test reads as the end of a run.
        Note(
            means="end",
            literal="Distributed task shutdown result: OK",
            pattern=re.compile(r"Distributed task shutdown result: OK"),
        ),
    ),
)
