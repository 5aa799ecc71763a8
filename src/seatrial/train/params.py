"""Every parameter of the model, declared once: shape, dimension names, initial values.

Initial values, abstract shapes, placements, the weight-decay mask and counts are maps over these declarations.
Matrices are stored [in, out]; layers are stacked along a leading L. The bias of "query" is called "query_bias".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from seatrial.spec import RunSpec
from seatrial.train.layers import ACTIVATIONS, NORMS
from seatrial.train.sharding import Placement, Rules


@dataclass(frozen=True)
class Declaration:
    """`filled`: the part of `shape` that is used, where the rest is padding and stays 0."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    std: float = 0.0
    mean: float = 0.0
    filled: tuple[int, ...] | None = None

    @property
    def decay(self) -> bool:
        """Whether weight decay applies: to what begins random, so to matrices, and not to norms and biases."""
        return self.std > 0


def declare(spec: RunSpec) -> dict[str, Any]:
    """The parameter tree of a run's model, as declarations. A tied model has no "head": its embedding serves.

    Tables are padded so that the tensor axis splits them. Raises ValueError for sequences longer than the model knows.
    """
    model, tensor, std = spec.model, spec.mesh["tensor"], spec.initialization.std
    L, D, F = model.num_layers, model.hidden_dim, model.ffn_dim
    HK, GK = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    # GPT-2: the 2·L residual additions keep their variance
    residual_std = std / math.sqrt(2 * L) if spec.initialization.scaled else std
    into, heads, kv_heads, ffn = (D, "embed"), (HK, "heads"), (GK, "kv_heads"), (F, "ffn")
    maps = {
        "query": (into, heads, std),
        "key": (into, kv_heads, std),
        "value": (into, kv_heads, std),
        "output": (heads, into, residual_std),
        **dict.fromkeys(ACTIVATIONS[model.activation].inputs, (into, ffn, std)),
        "down": (ffn, into, residual_std),
    }

    def norm(name: str, *stacked: tuple[int, str]) -> dict[str, Declaration]:
        shape, names = zip(*stacked, (D, "norm"), strict=True)
        return {name + suffix: Declaration(shape, names, mean=mean) for suffix, mean in NORMS[model.norm].begin.items()}

    def table(rows: int, multiple: int) -> Declaration:
        return Declaration((-(-rows // multiple) * multiple, D), ("vocab", "embed"), std, filled=(rows, D))

    layers = norm("attention_norm", (L, "layers")) | norm("ffn_norm", (L, "layers"))
    for name, ((fan_in, name_in), (fan_out, name_out), width) in maps.items():
        layers[name] = Declaration((L, fan_in, fan_out), ("layers", name_in, name_out), width)
        if model.biases:
            layers[f"{name}_bias"] = Declaration((L, fan_out), ("layers", name_out.replace("embed", "norm")))
    tree: dict[str, Any] = {"embedding": table(model.vocab_size, model.vocab_multiple * tensor), "layers": layers}
    if model.positions == "learned":
        length, known = spec.batch.sequence_length, model.max_positions or spec.batch.sequence_length
        if length > known:
            raise ValueError(
                f"sequence_length = {length} is more than the max_positions = {known} of learned positions"
            )
        tree["positions"] = table(known, tensor)
    if not model.tied_embeddings:
        V = tree["embedding"].shape[0]
        tree["head"] = Declaration((D, V), ("embed", "vocab"), std, filled=(D, model.vocab_size))
    return tree | norm("final_norm")


def initialize(declarations: dict[str, Any], seed: int, dtype: jnp.dtype) -> dict[str, Any]:
    """Random parameters. The values depend on the seed and the position in the tree alone, not on the mesh."""
    leaves, structure = jax.tree.flatten(declarations)
    keys = jax.random.split(jax.random.key(seed), len(leaves))

    def values(leaf: Declaration, key: jax.Array) -> jax.Array:
        filled = leaf.filled or leaf.shape
        x = leaf.std * jax.random.normal(key, filled, jnp.float32) if leaf.std else jnp.full(filled, leaf.mean)
        return jnp.pad(x, [(0, size - used) for size, used in zip(leaf.shape, filled, strict=True)]).astype(dtype)

    return jax.tree.unflatten(structure, [values(leaf, key) for leaf, key in zip(leaves, keys, strict=True)])


def placements(declarations: dict[str, Any], rules: Rules) -> dict[str, Any]:
    """A `Placement` per parameter. Raises ValueError, naming the parameter, where a split does not divide."""

    def place(path: tuple[Any, ...], leaf: Declaration) -> Placement:
        try:
            return rules.placement(leaf.names, leaf.shape)
        except ValueError as error:
            raise ValueError(f"parameter {'.'.join(str(key.key) for key in path)}: {error}") from error

    return jax.tree_util.tree_map_with_path(place, declarations)


def of_layer(stacked: dict[str, Placement]) -> dict[str, Placement]:
    """Placements of one layer's slice of the stacked parameters: the leading dimension drops away."""
    return {
        name: replace(p, rest=p.rest[1:], compute=p.compute[1:], optimizer=p.optimizer[1:])
        for name, p in stacked.items()
    }


# --- the order of layers ----------------------------------------------------------------------------------------------


def _reordered(tree: dict[str, Any], outer: int, inner: int) -> dict[str, Any]:
    def swap(w: Any) -> Any:
        return w.reshape(outer, inner, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)

    return tree if 1 in (outer, inner) else tree | {"layers": jax.tree.map(swap, tree["layers"])}


def placed(tree: dict[str, Any], spec: RunSpec) -> dict[str, Any]:
    """Parameters, or an optimizer's slot of them, from the model's order of layers to that of the mesh.

    With virtual pipeline stages a stage holds V chunks of layers that do not follow one another in the model, so the
    layers lie stage by stage: [V, P, l] → [P, V, l]. Else nothing changes. Takes arrays of JAX, NumPy, or a trace.
    """
    return _reordered(tree, chunks_per_stage(spec), spec.mesh["pipeline"])


def canonical(tree: dict[str, Any], spec: RunSpec) -> dict[str, Any]:
    """The inverse of `placed`: layers in the order of the model, as checkpoints and exports hold them on every mesh."""
    return _reordered(tree, spec.mesh["pipeline"], chunks_per_stage(spec))


def chunks_per_stage(spec: RunSpec) -> int:
    """V: chunks of layers per pipeline stage; 1 without a pipeline."""
    return spec.parallelism.virtual_pipeline if spec.mesh["pipeline"] > 1 else 1
