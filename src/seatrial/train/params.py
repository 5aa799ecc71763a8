"""Every parameter of the model, declared once: shape, dimension names, initial spread.

Initial values, abstract shapes, placements, the weight-decay mask and counts are maps over these declarations.
Matrices are stored [in, out]; layers are stacked along a leading L.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from seatrial.spec import ModelSpec
from seatrial.train.sharding import Placement, Rules

INITIAL_STD = 0.02  # as Llama and GPT-2


@dataclass(frozen=True)
class Declaration:
    """`std` None: ones (a norm's scale). `decay`: whether weight decay applies (to matrices)."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    std: float | None = INITIAL_STD

    @property
    def decay(self) -> bool:
        return self.std is not None


def declare(model: ModelSpec) -> dict[str, Any]:
    """The parameter tree of a model, as declarations. A tied model has no "head": its embedding serves."""
    L, D, F, V = model.num_layers, model.hidden_dim, model.ffn_dim, model.vocab_size
    HK, GK = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    residual_std = INITIAL_STD / math.sqrt(2 * L)  # GPT-2: the 2·L residual additions keep their variance
    tree: dict[str, Any] = {
        "embedding": Declaration((V, D), ("vocab", "embed")),
        "layers": {
            "attention_norm": Declaration((L, D), ("layers", "norm"), std=None),
            "query": Declaration((L, D, HK), ("layers", "embed", "heads")),
            "key": Declaration((L, D, GK), ("layers", "embed", "kv_heads")),
            "value": Declaration((L, D, GK), ("layers", "embed", "kv_heads")),
            "output": Declaration((L, HK, D), ("layers", "heads", "embed"), std=residual_std),
            "ffn_norm": Declaration((L, D), ("layers", "norm"), std=None),
            "gate": Declaration((L, D, F), ("layers", "embed", "ffn")),
            "up": Declaration((L, D, F), ("layers", "embed", "ffn")),
            "down": Declaration((L, F, D), ("layers", "ffn", "embed"), std=residual_std),
        },
        "final_norm": Declaration((D,), ("norm",), std=None),
    }
    if not model.tied_embeddings:
        tree["head"] = Declaration((D, V), ("embed", "vocab"))
    return tree


def initialize(declarations: dict[str, Any], seed: int, dtype: jnp.dtype) -> dict[str, Any]:
    """Random parameters. The values depend on the seed and the position in the tree alone, not on the mesh."""
    leaves, structure = jax.tree.flatten(declarations)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(
        structure,
        [
            jnp.ones(leaf.shape, dtype)
            if leaf.std is None
            else (leaf.std * jax.random.normal(key, leaf.shape, jnp.float32)).astype(dtype)
            for key, leaf in zip(keys, leaves, strict=True)
        ],
    )


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
        name: Placement(rest=p.rest[1:], compute=p.compute[1:], optimizer=p.optimizer[1:], partial=p.partial)
        for name, p in stacked.items()
    }
