"""Hidden states → loss, without ever holding the logits of all tokens.

The output head and the cross-entropy are one operation: for each chunk of tokens the logits are made, and, where a
gradient will be wanted, turned into the gradients of the hidden states and of the head at once. Nothing of size
[tokens, vocab] outlives its chunk, and the head's product is computed once instead of twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from seatrial.train.precision import Products
from seatrial.train.sharding import Placement, Rules, gather, over, tensor_offset, to_rest

CHUNK_TOKENS = 1024
MASKED = -1e30  # finite: -inf would make 0 · inf in a gradient


@dataclass(frozen=True)
class Head:
    """How the output head lies and multiplies. `tied`: the parameter is the embedding, [V, D] instead of [D, V]."""

    placement: Placement
    rules: Rules
    products: Products
    tied: bool
    vocab_size: int | None = None  # without padding; None: there is none

    def logits(self, h_ND: jax.Array, w_DV: jax.Array) -> jax.Array:
        """In float32; those of padding are so low that no probability is theirs."""
        logits_NV = lax.dot(h_ND, w_DV, preferred_element_type=jnp.float32)
        if self.vocab_size in (None, w_DV.shape[1] * self.rules.axes.get("tensor", 1)):
            return logits_NV
        numbers_V = jnp.arange(w_DV.shape[1]) + tensor_offset(self.rules, w_DV.shape[1])
        return jnp.where(numbers_V < self.vocab_size, logits_NV, MASKED)

    def full(self, w: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """The parameter at rest → w_DV of this device's part of the vocabulary."""
        gathered = gather(w.astype(dtype), self.placement.rest, self.placement.compute)
        return gathered.T if self.tied else gathered

    def at_rest(self, dw_DV: jax.Array) -> jax.Array:
        """A gradient of `full` → the parameter's, summed and split as at rest."""
        return to_rest(dw_DV.T if self.tied else dw_DV, self.placement)


def _chunks(x: jax.Array, size: int) -> jax.Array:
    """[N, …] → [N / size, size, …]."""
    return x.reshape(x.shape[0] // size, size, *x.shape[1:])


def _chunk_size(N: int) -> int:
    """The largest divisor of N that is at most CHUNK_TOKENS."""
    return next(size for size in range(min(N, CHUNK_TOKENS), 0, -1) if N % size == 0)


def _losses(logits_NV: jax.Array, targets_N: jax.Array, rules: Rules) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Per token: loss_N and log-sum-exp over the whole vocabulary; and is_target_NV for this device's part of it."""
    V = logits_NV.shape[1]
    top_N = over(("tensor",), rules, lax.pmax)(logits_NV.max(axis=1))
    total_N = over(("tensor",), rules)(jnp.exp(logits_NV - top_N[:, None]).sum(axis=1))
    logsumexp_N = top_N + jnp.log(total_N)
    is_target_NV = lax.broadcasted_iota(jnp.int32, logits_NV.shape, 1) == (targets_N - tensor_offset(rules, V))[:, None]
    target_N = over(("tensor",), rules)(jnp.where(is_target_NV, logits_NV, 0).sum(axis=1))
    return logsumexp_N - target_N, logsumexp_N, is_target_NV


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def cross_entropy(h_ND: jax.Array, w: jax.Array, targets_N: jax.Array, weights_N: jax.Array, head: Head) -> jax.Array:
    """Σ weight · -log p(target) over this device's tokens, in float32; `w` is the head's shard at rest.

    Differentiable in h_ND and w. Under tensor parallelism dh_ND is this device's partial sum.
    """
    w_DV = head.full(w, h_ND.dtype)

    def chunk(total: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        h, targets, weights = inputs
        logits = head.logits(h, w_DV)
        return total + jnp.sum(weights * _losses(logits, targets, head.rules)[0]), None

    size = _chunk_size(h_ND.shape[0])
    return lax.scan(chunk, jnp.float32(0), tuple(_chunks(x, size) for x in (h_ND, targets_N, weights_N)))[0]


def _forward(
    h_ND: jax.Array, w: jax.Array, targets_N: jax.Array, weights_N: jax.Array, head: Head
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    w_DV = head.full(w, h_ND.dtype)

    def chunk(
        carry: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        total, dw_DV = carry
        h, targets, weights = inputs
        logits = head.logits(h, w_DV)
        losses, logsumexp, is_target = _losses(logits, targets, head.rules)
        probabilities = jnp.exp(logits - logsumexp[:, None])
        dlogits = ((probabilities - is_target) * weights[:, None]).astype(h.dtype)
        dh = head.products.input_gradient(dlogits, w_DV)
        dw_DV += head.products.weight_gradient(h, dlogits)
        return (total + jnp.sum(weights * losses), dw_DV), dh

    size = _chunk_size(h_ND.shape[0])
    start = (jnp.float32(0), jnp.zeros(w_DV.shape, jnp.float32))
    (total, dw_DV), dh = lax.scan(chunk, start, tuple(_chunks(x, size) for x in (h_ND, targets_N, weights_N)))
    return total, (dh.reshape(h_ND.shape), head.at_rest(dw_DV).astype(w.dtype))


def _backward(
    head: Head, residuals: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array, None, None]:
    dh_ND, dw = residuals
    return (g * dh_ND).astype(dh_ND.dtype), (g * dw).astype(dw.dtype), None, None


cross_entropy.defvjp(_forward, _backward)


# --- objectives -------------------------------------------------------------------------------------------------------

Flat = dict[str, jax.Array]  # the fields of a batch, flattened to [N] beside the h_ND that they belong to


@dataclass(frozen=True)
class Objective:
    """What is minimised: the sum of `loss` over all devices, divided by that of `amount`.

    loss(h_ND, w, flat, head) → this device's part of the sum, and of the sums of whatever else is to be reported.
    amount(batch) → this device's part of what the sums are divided by.
    """

    loss: Callable[[jax.Array, jax.Array, Flat, Head], tuple[jax.Array, dict[str, jax.Array]]]
    amount: Callable[[Flat], jax.Array]


def _next_token(h_ND: jax.Array, w: jax.Array, flat: Flat, head: Head) -> tuple[jax.Array, dict[str, jax.Array]]:
    return cross_entropy(h_ND, w, flat["targets"], flat["weights"], head), {}


_TOKENS = Objective(loss=_next_token, amount=lambda batch: jnp.sum(batch["weights"]))

# `sft` is `pretraining` on data whose weights are 0 outside the answers.
OBJECTIVES: dict[str, Objective] = {"pretraining": _TOKENS, "sft": _TOKENS}
