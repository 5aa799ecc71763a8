"""torchtitan: `[titan] … - step: 10  loss:  7.62585  grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  …`.

Every rank prints unless LOG_RANK says otherwise, the first step and then every tenth, as means since the last line;
there are colour codes between the fields. `tps` is of a device, already divided by those that share a sequence. The
memory is what was reserved at most. Ranks of a pipeline without the last stage print a loss of -1, or the sum of as
many as there are micro batches in a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from seatrial.logs.grammar import START, Family, Field, Found, note, stateless
from seatrial.logs.numbers import NUMBER

# A number is whole if there is something behind it: a blank or its unit. At the end of a line, tflops needs both of its
# decimals, and tps all three digits after its comma.
_VALUE = rf"{NUMBER}(?=\s|GiB\()|{NUMBER}%(?=\)|\s|$)|(?<=tflops: )\d[\d,]*\.\d\d$|(?<=[tw]ps: )\d{{1,3}},\d{{3}}$"
_WITHOUT_LOSS = frozenset(map(float, range(-4096, 0)))
_TOKENS = Field(name="tokens_per_second_per_device")

_MESH_SIZES = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp|ep)=(\d+)")
_MESH_LISTS = re.compile(r"device mesh with (\[[^\]]{0,200}\]), \[([\d, ]{1,100})\]")


def _read_mesh(line: str) -> Iterator[Found]:
    """The mesh of the devices, and so their number; experts share the devices of the other axes."""
    sizes = {name: int(size) for name, size in _MESH_SIZES.findall(line.partition("device mesh with parallelism")[2])}
    if lists := _MESH_LISTS.search(line):
        names = re.findall(r"\w+", lists[1])
        numbers = [int(size) for size in re.findall(r"\d+", lists[2])]
        sizes = dict(zip(names, numbers, strict=True)) if len(names) == len(numbers) else {}
    devices = math.prod(size for name, size in sizes.items() if name != "ep")
    if devices:
        mesh = {f"mesh__{name}": size for name, size in sizes.items() if size > 1}
        yield START, {**mesh, **({"num_devices": devices} if sizes else {})}


_NOTES = (
    note("start", " capacity: ", r"\b[A-Z]+ capacity: (?P<device_kind>.{1,80}?) with [\d.]+GiB memory"),
    note("start", " total parameters",
         r"Model (?P<model>\S{1,60}(?: \S{1,60})?) size: (?P<num_parameters>[\d,]+) total parameters"),
    # Of a device that it does not know, the utilization means nothing.
    note("start", "Peak flops undefined for", r"Peak flops undefined for: (?P<peak_assumed>.{1,80}?), fallback to "),
    note("start", "Peak FLOPS used for computing MFU:",
         rf"Peak FLOPS used for computing MFU: (?P<peak_flops_per_second>{NUMBER})\s*$"),
    note("start", "local batch size ",
         r"local batch size (?P<micro_batch_size>\d+), global batch size (?P<global_batch_size>\d+)"
         r"(?:, gradient[ _]accumulation[ _]steps:? (?P<accumulation_steps>\d+))?"
         r"(?:, sequence length (?P<sequence_length>\d+))?, total steps (?P<planned_steps>\d+)\b"),
    note("start", "tokens per train step", r"(?P<tokens_per_step>\d+) tokens per train step"),
    note("start", "Training starts at step ", r"Training starts at step \d+", trains=True),
    note("eval", "validate step:",
         re.compile(rf"validate step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>{NUMBER})(?=\s)", re.IGNORECASE)),
    note("checkpoint", "Finished saving the checkpoint",
         rf"Finished saving the checkpoint[^\d]{{0,60}}?in (?P<seconds>{NUMBER}) seconds"),
    note("checkpoint", "Loading the checkpoint ",
         r"Loading the checkpoint (?:at step |from \S{1,400}\bstep-)(?P<step>\d+)", action="restore"),
    note("end", "Training completed", r"\bINFO - Training completed\s*$"),
)  # fmt: skip

FAMILY = Family(
    name="torchtitan",
    anchors=("step:", "loss:"),
    head=re.compile(
        r"(?<!validate )\bstep:\s*(?P<step>\d+)(?:/(?P<total>\d+) = [\d.]+%)?(?=\s+loss:.{0,200}?(?:memory|tps|wps):)"
    ),
    pair=re.compile(rf"(?:\b|(?<=\d))([A-Za-z_][\w/]{{0,40}})(?::\s*|\()({_VALUE})", re.IGNORECASE),
    fields={
        "loss": Field(name="loss", missing=_WITHOUT_LOSS),
        "grad_norm": Field(name="grad_norm"),
        "lr": Field(name="learning_rate"),
        "memory": Field(name="memory_bytes", per=2.0**-30),
        "GiB": Field(name="memory_fraction"),
        "tps": _TOKENS,
        "wps": _TOKENS,  # 2024
        "tflops": Field(name="tflops_per_second_per_device"),
        "mfu": Field(name="mfu"),
    },
    counted_from=1,
    custom_reader=stateless(_read_mesh),
    custom_words=("device mesh with ",),
    notes=_NOTES,
)
