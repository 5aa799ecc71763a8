"""The families of logs, in the order in which the reference lists them."""

from __future__ import annotations

from seatrial.logs.families import (
    build_nanogpt,
    composer,
    deepspeed,
    levanter,
    lightning,
    lightning_checkpoints,
    litgpt,
    llmc,
    maxtext,
    megatron,
    mlperf,
    modded_nanogpt,
    nanochat,
    nanochat_mid,
    nanogpt,
    nanotron,
    olmo,
    torchtitan,
    torchtune,
    transformers,
    verl,
    verl_sft,
)
from seatrial.logs.grammar import Family

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (
        maxtext, megatron, nanotron, torchtitan, lightning_checkpoints, lightning, mlperf, transformers, olmo, composer,
        litgpt, torchtune, nanogpt, build_nanogpt, nanochat, nanochat_mid, llmc, modded_nanogpt, levanter, verl,
        verl_sft, deepspeed,
    )
}  # fmt: skip
