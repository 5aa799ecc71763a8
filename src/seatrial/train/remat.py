"""The tensors of a layer that are kept for the backward pass, and those that are recomputed: a table of rows.

A tensor has a name where it is made (`checkpoint_name`), and a part of a layer that can be computed again by itself has
one where it is called (`Remat.part`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from seatrial.spec import Execution

Layer = Callable[..., jax.Array]  # (x_BTD, weights, what the layer must know beside them) → x_BTD


@dataclass(frozen=True)
class Row:
    """The names of the tensors that a layer keeps beside its input (None: everything); and of those that wait for the
    backward pass in the host's memory. Where that is the device's own, they are just kept.
    """

    kept: tuple[str, ...] | None = ()
    offloaded: tuple[str, ...] = ()

    def policy(self) -> Any:
        """The row as a policy of JAX; there is none that keeps everything."""
        kept = self.kept or ()
        if not self.offloaded:
            named = jax.checkpoint_policies.save_only_these_names(*kept)
        else:
            named = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=list(kept),
                names_which_can_be_offloaded=list(self.offloaded),
                offload_src="device",
                offload_dst="pinned_host",
            )
        return _or_attention(named) if "context" in kept else named


# cuDNN's attention is one operation of JAX, which makes the context and the log-sum-exp for its backward pass. Neither
# can be given a name from outside, so that the operation itself is what a policy keeps.
_OF_CUDNN = "dot_product_attention_fwd"


def _or_attention(named: Any) -> Any:
    """A policy that keeps the results of cuDNN's attention, beside those that another one keeps."""

    def policy(operation: Any, *inputs: Any, **parameters: Any) -> Any:
        return operation.name.startswith(_OF_CUDNN) or named(operation, *inputs, **parameters)

    return policy


_PRODUCTS = ("query", "key", "value", "out", "gate", "up", "down")

# MaxText's policy names with MaxText's meaning — but for `none`, which there means `full` and here means none.
REMAT: dict[str, Row] = {
    "none": Row(None),
    "full": Row(),
    "minimal": Row(_PRODUCTS),
    "minimal_with_context": Row((*_PRODUCTS, "context")),
    "minimal_flash": Row((*_PRODUCTS, "context")),
    "minimal_offloaded": Row(offloaded=_PRODUCTS),
    "save_dot_except_mlp": Row(("query", "key", "value", "out")),
    "save_dot_with_context_except_mlp": Row(("query", "key", "value", "context", "out")),
    "save_dot_except_mlpwi": Row(("query", "key", "value", "out", "down")),
    "save_qkv_proj": Row(("query", "key", "value")),
    "qkv_proj_offloaded": Row(offloaded=("query", "key", "value")),
    "save_out_proj": Row(("out",)),
}

PARTS = ("core_attn", "mlp", "layernorm", "mlp_act", "rope", "layer")


@dataclass(frozen=True)
class Remat:
    """The recomputation of a run: a row for whole layers, and parts of a layer that are recomputed by themselves."""

    row: Row
    parts: tuple[str, ...] = ()

    def layer(self, layer: Layer) -> Layer:
        """A layer that keeps what its row says, and computes the rest again in the backward pass."""
        return layer if self.row.kept is None else jax.checkpoint(layer, policy=self.row.policy())

    def part(self, name: str, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """A part of a layer: it keeps its inputs alone where it is one of `parts`; an activation where its row keeps
        everything, too: to read what is inside of one takes longer than to compute it again."""
        again = name in self.parts or (name == "mlp_act" and self.row.kept is None)
        return jax.checkpoint(function) if again else function


def make_remat(execution: Execution) -> Remat:
    """The recomputation of a run. Raises ValueError for an unknown policy or module."""
    name, parts = execution.remat, execution.remat_modules
    if name == "selective":
        if unknown := [part for part in parts if part not in PARTS]:
            raise ValueError(
                f"execution.remat_modules: {unknown[0]!r} is not a part of a layer that can be recomputed; "
                f"known: {', '.join(PARTS)}"
            )
        return Remat(REMAT["full" if "layer" in parts else "none"], parts)
    if name == "custom":
        offloaded = execution.remat_offloaded
        return Remat(Row(tuple(tensor for tensor in execution.remat_kept if tensor not in offloaded), offloaded))
    if name not in REMAT:
        raise ValueError(f"execution.remat: unknown policy {name!r}; known: {', '.join(REMAT)}, selective, custom")
    return Remat(REMAT[name])
