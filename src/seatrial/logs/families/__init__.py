"""The families of logs, in the order in which the reference lists them."""

from __future__ import annotations

from seatrial.logs.families import lightning, maxtext, megatron, mlperf, nanotron, torchtitan, transformers
from seatrial.logs.grammar import Family

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (maxtext, megatron, nanotron, torchtitan, lightning, mlperf, transformers)
}
