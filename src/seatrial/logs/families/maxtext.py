"""MaxText and MaxDiffusion: `completed step: 49, seconds: 7.908, TFLOP/s/device: 460.480, …`; our own trainer, too.

Process 0 prints, by print() until 2025 and by absl's logging since. The time is taken before the device is waited for,
so that the first steps may be far too fast; the figures count padding, `total_weights` does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.logs.grammar import START, Family, Field, Found, note, stateless
from seatrial.logs.numbers import NUMBER

_TFLOPS = Field(name="tflops_per_second_per_device")

# Every number but total_weights has three decimals: one with fewer, and nothing behind it, was cut.
_VALUE = rf"{NUMBER}(?=[,\s])|[-+]?(?:nan|inf)\b|[-+]?\d+[.,]\d{{3}}(?:e[-+]\d\d\b|(?![\deE%]|[.,]\d))"

_CONFIG = re.compile(r"Config param (\w+): (.+?)\s*$")
# Parameter of the configuration, printed in full by every program → fact.
_CONFIG_FACTS = {
    "steps": "planned_steps",
    "global_batch_size_to_train_on": "global_batch_size",
    "max_target_length": "sequence_length",
    "per_device_batch_size": "per_device_batch_size",
    "gradient_accumulation_steps": "accumulation_steps",
    "model_name": "model",
    "dtype": "dtype",
    "quantization": "quantization",
    "attention": "attention",
    "remat_policy": "remat",
    "dataset_type": "data",
    "hardware": "hardware",
}
_MESH = re.compile(r"((?:ici|dcn)_\w+)_parallelism")
_ENUM = re.compile(r"\w+\.([A-Z_]+)")  # "DatasetType.SYNTHETIC"


def _read_config(line: str) -> Iterator[Found]:
    """A line of the configuration; the first one of a program says that it begins."""
    found = _CONFIG.search(line)
    if not found:
        return
    name, value = found.groups()
    enum = _ENUM.fullmatch(value)
    if axis := _MESH.fullmatch(name):
        yield START, {f"mesh__{axis[1]}": int(value)} if value.isdigit() and int(value) > 1 else {}
    else:
        fact = _CONFIG_FACTS.get(name)
        yield START, {fact: enum[1].lower() if enum else value} if fact else {}


_SECONDS_AT = rf" (?P<seconds>{NUMBER}) seconds[^@]{{0,80}}@ \S{{1,400}}?/(?P<step>\d+)(?:/\S{{0,200}})?\.?\s*$"

_NOTES = (
    note("start", "System Information: Jax Version:", r"Jax Version: (?P<versions__jax>[\w.+-]+)"),
    note("facts", "System Information: Jaxlib Version:", r"Jaxlib Version: (?P<versions__jaxlib>[\w.+-]+)"),
    note("facts", "System Information: Jax Backend:", r"Jax Backend: (?P<backend>.+?)\s*$"),
    note("facts", "Num_devices: ", r"Num_devices: (?P<num_devices>\d+), shape"),
    note("facts", "number parameters: ",
         r"number parameters: (?P<billions_of_parameters>[\d.]+) billion(?: \((?P<num_parameters>[\d,]+)\))?"),
    note("facts", "compiled in ", r"compiled in (?P<compile_seconds>[\d.]+) s; memory per device"),
    note("facts", "Total TFLOPs: ", rf"Total TFLOPs: (?P<tflop_per_step_per_device>{NUMBER})\s*$"),
    note("facts", "% learnable weight flops",
         r"split as (?P<weight_flops_fraction>[\d.]+%) learnable weight flops and "
         r"(?P<attention_flops_fraction>[\d.]+%) attention flops"),
    note("facts", "[train] Total estimated memory size:",
         r"Total estimated memory size: (?P<estimated_memory_bytes>[\d.]+ GB)"),
    # After the parameters were made, so far from the most that a step needs. "GB" is 2^30 bytes here.
    note("facts", "Using (GB) ", r"Using \(GB\) [\d.]+ / [\d.]+ \((?P<initial_memory_fraction>[\d.]+%)\) on \S"),
    *(
        note("eval", literal, re.compile(rf"{literal}(?P<step>\d+), loss=(?P<loss>{NUMBER})(?=,|\s|$)", re.IGNORECASE))
        for literal in ("eval metrics after step: ", "Completed eval after train step ")
    ),
    note("checkpoint", "Saved a checkpoint at step ", r"Saved a checkpoint at step (?P<step>\d+)\."),
    note("checkpoint", "Started an asynchronous checkpoint save for step ",
         r"Started an asynchronous checkpoint save for step (?P<step>\d+)\b"),
    note("checkpoint", "Finished blocking save in ", rf"Finished blocking save in{_SECONDS_AT}"),
    note("checkpoint", "Finished save in ", rf"Finished save in{_SECONDS_AT}"),
    note("checkpoint", "Finished load in ", rf"Finished load in{_SECONDS_AT}", action="restore"),
    note("checkpoint", "restoring from this run's directory step ",
         r"restoring from this run's directory step (?P<step>\d+)", action="restore"),
    # MaxText's other programs, which print the whole configuration too: what they came to.
    note("other", "Input `", r"(?:^|[\]:>] ?)Input `"),  # decode.py
    note("other", ", Generated text: ", r"Prompt: .{0,400}, Generated text: "),  # vllm_decode.py
    note("other", "decode checkpoint at", r"(?:[Ss]aved an|[Ss]uccessfully generated) (?:\w+ )?decode checkpoint at"),
    note("other", "saved in HuggingFace format at "),  # to_huggingface.py
    note("other", "benchmark results for length ", r"[Pp]refill (?:and insert )?benchmark results for length \d+"),
    note("other", "Finished train_compile.py successfully"),
    # What the CVS test reads as the end of a run. Most logs end without.
    note("end", "Distributed task shutdown result: OK"),
)  # fmt: skip

FAMILY = Family(
    name="maxtext",
    anchors=("completed ", "step: "),
    head=re.compile(
        r"(?P<batch_rampup>\[Rampup Batch Size Phase\],? )?(?<![A-Za-z])completed "
        r"(?P<profiler>profiler activation/deactivation )?step: (?P<step>\d+)(?=,)"
    ),
    pair=re.compile(rf"((?:raw_)?grad_norm(?==)|\b[A-Za-z_][\w /]{{0,40}}?(?=:))[:=] ?({_VALUE})", re.IGNORECASE),
    fields={
        "seconds": Field(name="seconds"),
        "TFLOP/s/device": _TFLOPS,
        "TFLOP/s": _TFLOPS,  # until 2024-03; of a device, too
        "Tokens/s/device": Field(name="tokens_per_second_per_device"),
        "total_weights": Field(name="tokens"),
        "loss": Field(name="loss"),  # of which "lm_loss" and "main_model_loss" are parts
        "perplexity": Field(name="perplexity"),
        "raw_grad_norm": Field(name="grad_norm", preferred=True),  # before clipping, as everybody means it
        "grad_norm": Field(name="grad_norm"),
        "lr": Field(name="learning_rate"),  # a fork's
    },
    counted_from=0,
    whole=re.compile(r"\bseconds: ?\d"),
    custom_reader=stateless(_read_config),
    custom_words=("Config param ",),
    notes=_NOTES,
)
