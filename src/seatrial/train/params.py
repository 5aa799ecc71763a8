"""Every parameter of the model, declared once: shape, dimension names, initial values.

Initial values, abstract shapes, placements, the weight-decay mask and counts are maps over these declarations.
Matrices are stored [in, out]; layers are stacked along a leading L. The bias of "query" is called "query_bias".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seatrial.spec import RunSpec
from seatrial.train.layers import ACTIVATIONS, NORMS
from seatrial.train.sharding import Placement, Rules

# Trees by the names of parameters; those of the layers, stacked, are a tree of their own under "layers".
Params = dict[str, Any]  # of arrays
Declarations = dict[str, Any]  # of `Declaration`
Placements = dict[str, Any]  # of `sharding.Placement`


# A path in such a tree → the name of what is there: "layers.query"
dotted = partial(jax.tree_util.keystr, simple=True, separator=".")


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
        """True if weight decay applies: to what begins random, so to matrices, and not to norms and biases."""
        return self.std > 0


def declare(spec: RunSpec) -> Declarations:
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
    tree: Declarations = {"embedding": table(model.vocab_size, model.vocab_multiple * tensor), "layers": layers}
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


def initialize(declarations: Declarations, seed: int, dtype: jnp.dtype) -> Params:
    """Random parameters. The values depend on the seed and the position in the tree alone, not on the mesh."""
    leaves, structure = jax.tree.flatten(declarations)
    keys = jax.random.split(jax.random.key(seed), len(leaves))

    def values(leaf: Declaration, key: jax.Array) -> jax.Array:
        filled = leaf.filled or leaf.shape
        x = leaf.std * jax.random.normal(key, filled, jnp.float32) if leaf.std else jnp.full(filled, leaf.mean)
        return jnp.pad(x, [(0, size - used) for size, used in zip(leaf.shape, filled, strict=True)]).astype(dtype)

    params: Params = jax.tree.unflatten(structure, list(map(values, leaves, keys)))
    return params


def placements(declarations: Declarations, rules: Rules) -> Placements:
    """A `Placement` per parameter. Raises ValueError, naming the parameter, where a split does not divide."""

    def place(path: tuple[Any, ...], leaf: Declaration) -> Placement:
        try:
            return rules.placement(leaf.names, leaf.shape)
        except ValueError as error:
            raise ValueError(f"parameter {dotted(path)}: {error}") from error

    placed: Placements = jax.tree_util.tree_map_with_path(place, declarations)
    return placed


def of_layer(stacked: dict[str, Placement]) -> dict[str, Placement]:
    """Placements of one layer's slice of the stacked parameters: the leading dimension drops away."""
    return {
        name: replace(p, rest=p.rest[1:], compute=p.compute[1:], optimizer=p.optimizer[1:])
        for name, p in stacked.items()
    }


# --- the order of layers ----------------------------------------------------------------------------------------------


def placed(tree: Params, spec: RunSpec) -> Params:
    """Parameters, or an optimizer's slot of them, from the model's order of layers to that of the mesh.

    With virtual pipeline stages a stage holds V chunks of layers that do not follow one another in the model, so the
    layers lie stage by stage: [V, P, l] → [P, V, l]. Else nothing changes. Takes arrays of JAX, NumPy, or a trace.
    """
    V, P = chunks_per_stage(spec), spec.mesh["pipeline"]

    def swap(w: Any) -> Any:
        return w.reshape(V, P, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)

    return tree if 1 in (V, P) else tree | {"layers": jax.tree.map(swap, tree["layers"])}


def layer_order(spec: RunSpec) -> np.ndarray:
    """The layer of the model at each place of the stacked parameters."""
    order: np.ndarray = placed({"layers": np.arange(spec.model.num_layers)}, spec)["layers"]
    return order


def chunks_per_stage(spec: RunSpec) -> int:
    """V: chunks of layers per pipeline stage; 1 without a pipeline."""
    return spec.parallelism.virtual_pipeline if spec.mesh["pipeline"] > 1 else 1
