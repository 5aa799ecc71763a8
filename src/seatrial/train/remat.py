"""Which of a layer's tensors are kept for the backward pass, and which are computed again: a table of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

Layer = Callable[..., jax.Array]  # (x_BTD, weights, what the layer must know beside them) → x_BTD
Rematerialize = Callable[[Layer], Layer]


def _keep(*names: str) -> Rematerialize:
    """A layer that keeps its input and the named tensors, and computes the rest again in the backward pass."""
    policy: Any = jax.checkpoint_policies.save_only_these_names(*names)
    return partial(jax.checkpoint, policy=policy, prevent_cse=True)


# MaxText's policy names with MaxText's meaning — but for `none`, which there means `full` and here means none.
REMAT: dict[str, Rematerialize] = {
    "none": lambda layer: layer,
    "full": _keep(),
    "minimal": _keep("query", "key", "value", "out", "gate", "up", "down"),
    "minimal_with_context": _keep("query", "key", "value", "context", "out", "gate", "up", "down"),
    "minimal_flash": _keep("query", "key", "value", "context", "out", "gate", "up", "down"),
    "save_dot_except_mlp": _keep("query", "key", "value", "out"),
    "save_dot_with_context_except_mlp": _keep("query", "key", "value", "context", "out"),
    "save_dot_except_mlpwi": _keep("query", "key", "value", "out", "down"),
    "save_qkv_proj": _keep("query", "key", "value"),
    "save_out_proj": _keep("out"),
}
