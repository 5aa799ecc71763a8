"""The table of what a mesh splits and into how many parts, for the findings of a check and for the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from seatrial.spec.run import RunSpec

LOSS_TOKENS = "tokens of a step on a device"  # the stages of a pipeline share them for the loss


class Split(NamedTuple):
    """A size at a spec path, or one that follows from it, that is split over `axes` into `parts`."""

    path: str
    name: str
    size: int
    axes: str
    parts: int


def uneven_splits(
    spec: RunSpec,
    *,
    balances_context: bool = True,
    shares_heads: bool = True,
    pads_vocabulary: bool = False,
    pads_shards: bool = False,
) -> Iterator[Split]:
    """The sizes that the mesh, which has to be resolved, does not split evenly.

    Trainers differ in four things. `balances_context`: a causal mask gives the ends of a sequence unequal work, so
    each device of the context axis takes a part from both. `shares_heads`: several devices of the tensor axis share a
    key/value head. `pads_vocabulary`: the embedding tables are padded even where the configuration does not say so.
    `pads_shards`: replicas share the parameters as one padded list of numbers, not dimension by dimension.
    """
    model, mesh, batch, parallelism = spec.model, spec.mesh, spec.batch, spec.parallelism
    tensor, context, stages, replicas = mesh["tensor"], mesh["context"], mesh["pipeline"], spec.data_parallel_size
    virtual = parallelism.virtual_pipeline if stages > 1 else 1
    head_parts = 1 if shares_heads and tensor % model.num_kv_heads == 0 else tensor
    vocabulary_parts = 1 if pads_vocabulary or model.vocab_multiple > 1 else tensor
    shards = {"fsdp": mesh["fsdp"], **({"data": mesh["data"]} if parallelism.zero1 else {})}
    shard_parts = 1 if pads_shards else prod(shards.values())
    tokens = {"2 × context" if balances_context else "context": context * (2 if balances_context else 1)}
    tokens = (tokens if context > 1 else {}) | ({"tensor": tensor} if parallelism.sequence_parallel else {})
    chunks = 1 if parallelism.stage_layers else stages * virtual  # else each has its own number of layers
    layers = model.num_layers + (parallelism.counts_embedding + parallelism.counts_head if stages > 1 else 0)
    share = spec.tokens_per_step // (replicas * context * tokens.get("tensor", 1))
    for split in (
        Split("model.num_layers", "num_layers", layers, "pipeline × virtual_pipeline", chunks),
        Split("model.num_heads", "num_heads", model.num_heads, "tensor", tensor),
        Split("model.num_kv_heads", "num_kv_heads", model.num_kv_heads, "tensor", head_parts),
        Split("model.ffn_dim", "ffn_dim", model.ffn_dim, "tensor", tensor),
        Split("model.vocab_size", "vocab_size", model.vocab_size, "tensor", vocabulary_parts),
        Split("model.hidden_dim", "hidden_dim", model.hidden_dim, " × ".join(shards), shard_parts),
        Split(
            "batch.sequence_length", "sequence_length", batch.sequence_length, " × ".join(tokens), prod(tokens.values())
        ),
        Split(
            "batch.global_batch_size", "global_batch_size", batch.global_batch_size, "micro_batch_size × data × fsdp",
            batch.micro_batch_size * replicas,
        ),
        Split("batch.sequence_length", LOSS_TOKENS, share, "pipeline", stages),
    ):  # fmt: skip
        if split.size % split.parts:
            yield split
