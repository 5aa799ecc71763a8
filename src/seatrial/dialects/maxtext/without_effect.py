"""The keys of MaxText 0.2.5 that make no value of a run, each with why: most are in `without_effect.txt`, some here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.dialects.maxtext import values
from seatrial.dialects.maxtext.values import choice, or_none, same, switch
from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Reader, anything
from seatrial.dialects.table.keys import Key, equivalent, ignored, rejected
from seatrial.dialects.table.without_effect import rows

_ROWS: dict[str, Key] = {
    **{
        f"{part}_{axis}_parallelism": rejected(why, coerce.axis_size, quiet=(1,))
        for part in ("ici", "dcn")
        for axis, why in {
            "sequence": f"MaxText ignores it since 0.2.2: its mesh has no such axis; use {part}_context_parallelism",
            "expert": "it is for mixtures of experts",
            "autoregressive": "it is for inference",
            "context_autoregressive": "it is for inference",
            "context_usp_ulysses": f"context parallelism has one axis here; use {part}_context_parallelism",
            "fsdp_transpose": f"parameters are sharded along one dimension here; use {part}_fsdp_parallelism",
            "diloco": "DiLoCo is not supported here",
            "tensor_transpose": f"MaxText 0.2.4 removed it; use {part}_tensor_parallelism",
        }.items()
    },
    "base_config": equivalent("the file is read before this one", coerce.text, "a YAML file that this one changes"),
    "shard_mode": equivalent("the trainer here places everything explicitly", choice(same(("auto", "explicit")))),
    "sharding_strategy": equivalent("placement is fixed here", or_none(coerce.text)),
    "decoder_block": equivalent("every model is a Llama decoder here", choice(
        same(("default", "llama2", "mistral")), refused=values.OTHER_DECODERS,
        because="only Llama's decoder is supported here")),
    "matmul_precision": ignored("float32 products are exact here, bfloat16 products are not changed", choice(
        same(("default", "high", "highest", "bfloat16", "float32"))), quiet=("default",)),
    "mhc_expansion_rate": rejected("hyper-connections are not supported here", coerce.whole, quiet=(0, 1)),
    "attn_logits_soft_cap": rejected("attention is not capped here", or_none(coerce.decimal), quiet=(None, 0.0)),
    "final_logits_soft_cap": rejected("logits are not capped here", or_none(coerce.decimal), quiet=(None, 0.0)),
    "weight_sparsity_n": rejected("weights are dense here", or_none(coerce.whole), quiet=(None,)),
    "weight_sparsity_m": rejected("weights are dense here", or_none(coerce.whole), quiet=(None,)),
    "use_grpo": rejected("reinforcement learning is not supported here", or_none(switch), quiet=(None, False)),
    "prompt": ignored("it applies to inference only", coerce.text, quiet=("I love to",)),
    "save_checkpoint_on_start": ignored("nothing is saved before the first step here", switch, quiet=(True, False)),
    "upload_all_profiler_results": ignored("profiles stay in the run directory", switch, quiet=(True, False)),
    "hf_access_token": ignored("tokens are never read into a configuration here", anything, quiet=("", None)),
    "eval_dataset_name": ignored("it is not read here; MaxText reads it in evaluations, with tfds",
                                 coerce.text, quiet=("c4/en:3.1.0", "c4/en:3.0.1")),
    "metrics_file": ignored("metrics are in the run directory", or_none(coerce.text), quiet=(None,)),
    "tokenizer_type": ignored("the tokenizer's files say what they are", choice(
        same(("sentencepiece", "huggingface", "tiktoken"))), quiet=("sentencepiece", "huggingface", "tiktoken")),
}  # fmt: skip

# Readers by the word in the table, or by the kind of the default, where any number will do.
_KINDS: Mapping[Any, Reader] = {
    "switch": switch, "whole": coerce.whole, "count": coerce.count, "decimal": coerce.decimal, "share": coerce.share,
    "text": coerce.text, "texts": values.texts,
    bool: switch, int: or_none(coerce.decimal), float: or_none(coerce.decimal),
}  # fmt: skip


IN_TABLE: dict[str, Key] = dict(
    rows("maxtext", lambda name, kind, default: _KINDS.get(kind or type(default), anything))
)
KEYS: dict[str, Key] = {**_ROWS, **IN_TABLE}
