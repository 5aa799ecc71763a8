"""Which of a layer's tensors are kept for the backward pass, and which are computed again: a table of rows.

A tensor has a name where it is made (`checkpoint_name`), and a part of a layer that can be computed again by itself has
one where it is called (`Remat.part`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from seatrial.spec import Execution

Layer = Callable[..., jax.Array]  # (x_BTD, weights, what the layer must know beside them) → x_BTD
Rematerialize = Callable[[Layer], Layer]


def _keep(*names: str) -> Rematerialize:
    """A layer that keeps its input and the named tensors, and computes the rest again in the backward pass."""
    policy: Any = jax.checkpoint_policies.save_only_these_names(*names)
    return partial(jax.checkpoint, policy=policy, prevent_cse=True)


def _offload(*names: str) -> Rematerialize:
    """The same, but the named tensors wait in the host's memory. Where that is the device's own, they are just kept."""
    policy: Any = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )
    return partial(jax.checkpoint, policy=policy, prevent_cse=True)


_PRODUCTS = ("query", "key", "value", "out", "gate", "up", "down")

# MaxText's policy names with MaxText's meaning — but for `none`, which there means `full` and here means none.
REMAT: dict[str, Rematerialize] = {
    "none": lambda layer: layer,
    "full": _keep(),
    "minimal": _keep(*_PRODUCTS),
    "minimal_with_context": _keep(*_PRODUCTS, "context"),
    "minimal_flash": _keep(*_PRODUCTS, "context"),
    "minimal_offloaded": _offload(*_PRODUCTS),
    "save_dot_except_mlp": _keep("query", "key", "value", "out"),
    "save_dot_with_context_except_mlp": _keep("query", "key", "value", "context", "out"),
    "save_dot_except_mlpwi": _keep("query", "key", "value", "out", "down"),
    "save_qkv_proj": _keep("query", "key", "value"),
    "qkv_proj_offloaded": _offload("query", "key", "value"),
    "save_out_proj": _keep("out"),
}

PARTS = ("core_attn", "mlp", "layernorm", "mlp_act", "rope", "layer")


@dataclass(frozen=True)
class Remat:
    """`layer` makes a layer recompute what its row says; `parts` are those that are recomputed by themselves."""

    layer: Rematerialize
    parts: tuple[str, ...] = ()

    def part(self, name: str, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """A part of a layer: it keeps its inputs alone where it is one of `parts`."""
        return jax.checkpoint(function) if name in self.parts else function


def make_remat(execution: Execution) -> Remat:
    """The recomputation of a run. Raises ValueError for a row or a module that the trainer has not."""
    name, parts = execution.remat, execution.remat_modules
    if name == "selective":
        if unknown := [part for part in parts if part not in PARTS]:
            raise ValueError(
                f"execution.remat_modules: {unknown[0]!r} is no part of a layer that can be recomputed; "
                f"there is {', '.join(PARTS)}"
            )
        return Remat(REMAT["full" if "layer" in parts else "none"], parts)
    if name not in REMAT:
        raise ValueError(f"execution.remat: there is no row {name!r}; there is {', '.join(REMAT)}, selective")
    return Remat(REMAT[name])
