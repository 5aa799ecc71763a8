"""The keys of MaxText 0.2.5 that make no value of a run, each with why: most are in `without_effect.txt`, some here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any

from seatrial.dialects.maxtext import values
from seatrial.dialects.maxtext.values import anything, choice, nothing, or_none, same, switch
from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Reader
from seatrial.dialects.table.keys import Key, equivalent, ignored, rejected

_ONE_PROCESS = "every process takes the devices that its launcher gives it"
_SYNTHETIC_NAMES = "nothing is read from this set here: MaxText reads it in evaluations, by tfds"
_SECRET = "tokens are never read into a configuration here"

_MACHINES: dict[str, Key] = {
    "skip_jax_distributed_system": equivalent(_ONE_PROCESS, switch),
    "allow_split_physical_axes": equivalent("the order of devices changes speed only", switch),
    "mesh_axes": equivalent("the mesh here has the axes of ici_* and dcn_*", anything),
    "logical_axis_rules": equivalent("how dimensions map to mesh axes is fixed here, and changes no result", anything),
    "data_sharding": equivalent("the input is split over data and fsdp here, which changes no result", anything),
    "custom_mesh": ignored("the mesh is that of ici_* and dcn_*", coerce.text, quiet=("",)),
    "custom_mesh_and_rule": ignored("the mesh is that of ici_* and dcn_*", coerce.text, quiet=("",)),
    "shard_mode": equivalent("the trainer here places everything explicitly", choice(same(("auto", "explicit")))),
    "shardy": equivalent("the trainer here places everything explicitly", switch),
    "context_parallel_load_balance": equivalent("it changes which device has which tokens, nothing else", switch),
    "num_pipeline_microbatches": equivalent("it changes how a pipeline is filled, not what it computes", coerce.whole),
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
            "diloco": "DiLoCo, in which replicas drift apart between exchanges, is not supported here",
            "tensor_transpose": f"MaxText 0.2.4 removed it; use {part}_tensor_parallelism",
        }.items()
    },
}  # fmt: skip

_MODEL: dict[str, Key] = {
    "base_config": equivalent("the file is read before this one", coerce.text, "a YAML file that this one changes"),
    "override_logical_axis_rules": equivalent("placement is fixed here", switch),
    "decoder_block": equivalent(
        "every model here is a Llama decoder",
        choice(same(("default", "llama2", "mistral")), refused=values.OTHER_DECODERS,
               because="only Llama's decoder is supported here"),
    ),
    "dense_init_scale": ignored(
        "weights begin here with a normal distribution of one width, in MaxText with one by fan-in", coerce.decimal,
        quiet=(1.0,),
    ),
    "use_iota_embed": equivalent("it chooses how an embedding is looked up, not what is found", switch),
    "fused_qkv": equivalent("it chooses how products are computed, not what they are", switch),
    "fused_mlp": equivalent("it chooses how products are computed, not what they are", switch),
    "logits_dot_in_fp32": equivalent("logits are always accumulated in float32 here", switch),
    "cast_logits_to_fp32": equivalent("logits are always in float32 here", switch),
    "float32_qk_product": equivalent("attention scores are always accumulated in float32 here", switch),
    "float32_logits": equivalent("the softmax of attention is always in float32 here", switch),
    "matmul_precision": ignored(
        "products of float32 are exact here, and of bfloat16 as they are",
        choice(same(("default", "high", "highest", "bfloat16", "float32"))), quiet=("default",),
    ),
    "attn_logits_soft_cap": rejected("attention is not capped here", or_none(coerce.decimal), quiet=(None, 0.0)),
    "final_logits_soft_cap": rejected("logits are not capped here", or_none(coerce.decimal), quiet=(None, 0.0)),
    "engram_layers": rejected("engrams are not supported here", values.texts, quiet=((),)),
}  # fmt: skip

_TRAINING: dict[str, Key] = {
    "trainable_parameters_mask": rejected("every parameter is trained here", values.texts, quiet=((),)),
    "training_objective": rejected("only the next token is predicted here", coerce.text, quiet=("causal_lm",)),
    "weight_sparsity_n": rejected("weights are dense here", or_none(coerce.whole), quiet=(None,)),
    "weight_sparsity_m": rejected("weights are dense here", or_none(coerce.whole), quiet=(None,)),
    "use_grpo": rejected("reinforcement learning is not supported here", or_none(switch), quiet=(None, False)),
    "dpo.dpo_label_smoothing": rejected("preferences are taken as they are here", coerce.share, quiet=(0.0,)),
    "num_vocab_tiling": equivalent("the loss is computed in pieces here anyway", coerce.count),
    "optimizer_memory_host_offload": equivalent("it changes where states are kept, not what they are", switch),
    "parameter_memory_host_offload": equivalent("it changes where parameters are kept, not what they are", switch),
    "max_segments_per_seq": equivalent("attention here needs no such bound", coerce.whole),
    "param_scan_axis": equivalent("it changes the layout of stacked parameters only", coerce.whole),
    "use_qwix_quantization": equivalent("it chooses the library that quantizes", switch),
    "prompt": ignored("it concerns inference only", coerce.text, quiet=("I love to",)),
    "sharding_strategy": equivalent("placement is fixed here", or_none(coerce.text)),
    "log_period": equivalent("every step is logged here, as in MaxText; there it is how often TensorBoard is flushed",
                             coerce.count),
    "eval_per_device_batch_size": ignored("evaluations use the batch of training", coerce.decimal, quiet=(0.0,)),
    "eval_start_step": ignored("evaluations begin with eval_interval", coerce.whole, quiet=(0,)),
    "reuse_example_batch": ignored("it is a test of speed; dataset_type=synthetic is one", coerce.whole, quiet=(0,)),
    "save_checkpoint_on_start": ignored("nothing is saved before the first step", switch, quiet=(True, False)),
    "upload_all_profiler_results": ignored("profiles stay in the run directory", switch, quiet=(True, False)),
    "profile_cleanly": equivalent("a profile always begins and ends between two steps here", switch),
    "profile_periodically_period": ignored("one profile is made here", coerce.whole, quiet=(-1,)),
    "hf_access_token": ignored(_SECRET, anything, quiet=("", None)),
    "eval_dataset_name": ignored(_SYNTHETIC_NAMES, coerce.text, quiet=("c4/en:3.1.0", "c4/en:3.0.1")),
    "metrics_file": ignored("metrics stand in the run directory", or_none(coerce.text), quiet=(None,)),
    "tokenizer_type": ignored(
        "the tokenizer's files say what they are", choice(same(("sentencepiece", "huggingface", "tiktoken"))),
        quiet=("sentencepiece", "huggingface", "tiktoken"),
    ),
}  # fmt: skip


def _in_groups() -> Iterator[tuple[str, Key]]:
    """The rows of `without_effect.txt`: a line `disposition: why`, and below it `name=default` of each key."""
    disposition, why = "", ""
    text = files("seatrial.dialects.maxtext").joinpath("without_effect.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith(" "):
            yield from ((item.partition("=")[0], _row(item, disposition, why)) for item in line.split())
        elif not line.startswith("#"):
            disposition, _, why = line.partition(": ")


def _row(item: str, disposition: Any, why: str) -> Key:
    """The row of `name=default`, read as values of the default's kind; of `name` alone, as any value."""
    _, equals, text = item.partition("=")
    default: Any = text
    with suppress(ValueError):
        default = None if nothing(text) else json.loads(text)
    read = _READERS.get((type(default), disposition == "rejected"), anything)
    quiet = (default, tuple(default)) if isinstance(default, list) else (default,)
    return Key(read=read, why=why, disposition=disposition, quiet=quiet if equals else ())


# (kind of the default, whether the key is rejected) → reader; of a key without effect, any number will do.
_READERS: Mapping[tuple[type, bool], Reader] = {
    (bool, False): switch, (int, False): or_none(coerce.decimal), (float, False): or_none(coerce.decimal),
    (bool, True): switch, (int, True): coerce.whole, (float, True): coerce.decimal,
}  # fmt: skip
IN_GROUPS: dict[str, Key] = dict(_in_groups())
KEYS: dict[str, Key] = {**_MACHINES, **_MODEL, **_TRAINING, **IN_GROUPS}
