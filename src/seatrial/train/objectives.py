"""Hidden states → loss, without ever holding the logits of all tokens.

The output head and the cross-entropy are one operation: for each chunk of tokens the logits are made, and, where a
gradient will be wanted, turned into the gradients of the hidden states and of the head at once. Nothing of size
[tokens, vocab] outlives its chunk, and the head's product is computed once instead of twice. Preferences compare whole
sequences, so that gradients are known only when all tokens are: there the logits are made again in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from seatrial.spec import Objective as Settings
from seatrial.train.precision import Products
from seatrial.train.sharding import Placement, Rules, gather, over, tensor_offset, to_rest

MASKED = -1e30  # finite: -inf would make 0 · inf in a gradient


@dataclass(frozen=True)
class Head:
    """The layout and products of the output head. `tied`: the parameter is the embedding, [V, D] instead of [D, V]."""

    placement: Placement
    rules: Rules
    products: Products
    tied: bool
    vocab_size: int | None = None  # without padding; None: there is none

    @property
    def name(self) -> str:
        """The parameter's."""
        return "embedding" if self.tied else "head"

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
        # Behind the barrier XLA:CPU cannot turn the product itself around, into one that it has not in bfloat16.
        return to_rest(lax.optimization_barrier(dw_DV).T if self.tied else dw_DV, self.placement)


def _chunked(head: Head, *fields_N: jax.Array) -> tuple[jax.Array, ...]:
    """[N, …] → [N / n, n, …], n the largest divisor of N that is at most the `logits_tokens` of the head's products."""
    N = fields_N[0].shape[0]
    size = next(size for size in range(min(N, head.products.logits_tokens), 0, -1) if N % size == 0)
    return tuple(x.reshape(N // size, size, *x.shape[1:]) for x in fields_N)


def _of_targets(logits_NV: jax.Array, targets_N: jax.Array, head: Head) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Per token log p(target); and of the softmax exp(logits - the highest) and its sum over all words."""
    V, over_words = logits_NV.shape[1], over(("tensor",), head.rules)
    here_N = targets_N - tensor_offset(head.rules, V)
    found_N = jnp.take_along_axis(logits_NV, jnp.clip(here_N, 0, V - 1)[:, None], axis=1)[:, 0]
    target_N = over_words(jnp.where((here_N >= 0) & (here_N < V), found_N, 0))
    top_N = over(("tensor",), head.rules, lax.pmax)(logits_NV.max(axis=1))
    exp_NV = jnp.exp(logits_NV - top_N[:, None])
    total_N = over_words(exp_NV.sum(axis=1))
    return target_N - top_N - jnp.log(total_N), exp_NV, total_N


Residuals = tuple[jax.Array, ...]


def _with_gradients(
    h_ND: jax.Array, w: jax.Array, targets_N: jax.Array, weights_N: jax.Array, head: Head
) -> tuple[jax.Array, Residuals]:
    """Σ weight · -log p(target); and its gradients, dh_ND and that of `w`, for which no logits are made again."""
    w_DV = head.full(w, h_ND.dtype)

    def chunk(carry: Any, inputs: Residuals) -> tuple[Any, jax.Array]:
        total, dw_DV = carry
        h, targets, weights = inputs
        logp, exp, total_of = _of_targets(head.logits(h, w_DV), targets, head)
        words = lax.broadcasted_iota(jnp.int32, exp.shape, 1) + tensor_offset(head.rules, exp.shape[1])
        dlogits = exp * (weights / total_of)[:, None] - jnp.where(words == targets[:, None], weights[:, None], 0)
        dlogits = dlogits.astype(h.dtype)
        dw_DV = dw_DV + head.products.weight_gradient(h, dlogits)
        return (total - jnp.sum(weights * logp), dw_DV), head.products.input_gradient(dlogits, w_DV)

    start = (jnp.float32(0), jnp.zeros(w_DV.shape, jnp.float32))
    (total, dw_DV), dh = lax.scan(chunk, start, _chunked(head, h_ND, targets_N, weights_N))
    return total, (dh.reshape(h_ND.shape), head.at_rest(dw_DV).astype(w.dtype))


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def cross_entropy(h_ND: jax.Array, w: jax.Array, targets_N: jax.Array, weights_N: jax.Array, head: Head) -> jax.Array:
    """Σ weight · -log p(target) over this device's tokens, in float32; `w` is the head's shard at rest.

    Differentiable in h_ND and w. Under tensor parallelism dh_ND is this device's partial sum.
    """
    return -jnp.sum(weights_N * token_log_probabilities(h_ND, w, targets_N, head))


def _scaled(head: Head, gradients: Residuals, g: jax.Array) -> tuple[jax.Array, jax.Array, None, None]:
    dh_ND, dw = gradients
    return (g * dh_ND).astype(dh_ND.dtype), (g * dw).astype(dw.dtype), None, None


cross_entropy.defvjp(_with_gradients, _scaled)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def token_log_probabilities(h_ND: jax.Array, w: jax.Array, targets_N: jax.Array, head: Head) -> jax.Array:
    """log p(target) of every token, in float32; `w` is the head's shard at rest.

    Differentiable like `cross_entropy`, for losses that are no weighted sum: the backward pass makes the logits again.
    """
    w_DV = head.full(w, h_ND.dtype)

    def chunk(inputs: Residuals) -> jax.Array:
        return _of_targets(head.logits(inputs[0], w_DV), inputs[1], head)[0]

    chunks: jax.Array = lax.map(chunk, _chunked(head, h_ND, targets_N))
    return chunks.reshape(-1)


def _made_again(head: Head, operands: Residuals, g_N: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    """The gradients of Σ g · log p(target)."""
    h_ND, w, targets_N = operands
    dh_ND, dw = _with_gradients(h_ND, w, targets_N, -g_N, head)[1]
    return dh_ND, dw, None


token_log_probabilities.defvjp(lambda *given: (token_log_probabilities(*given), given[:3]), _made_again)


# --- objectives -------------------------------------------------------------------------------------------------------

Flat = dict[str, jax.Array]  # the fields of a batch, flattened to [N] beside the h_ND that they belong to
Sums = tuple[jax.Array, dict[str, jax.Array]]  # of the loss, and of whatever else is to be reported
APART = ("pipeline", "context")  # the mesh axes over which the tokens of one sequence may lie


@dataclass(frozen=True)
class Objective:
    """The loss to minimise: the sum of `loss` over all devices, divided by that of `amount`.

    loss(h_ND, w, flat, R, head, settings) → this device's part of the sums; the tokens are those of R sequences.
    amount(batch, rules) → this device's part of what they are divided by.
    """

    loss: Callable[[jax.Array, jax.Array, Flat, int, Head, Settings], Sums]
    amount: Callable[[Flat, Rules], jax.Array]


def _next_token(h_ND: jax.Array, w: jax.Array, flat: Flat, R: int, head: Head, settings: Settings) -> Sums:
    return cross_entropy(h_ND, w, flat["targets"], flat["weights"], head), {}


def of_sequences(x_N: jax.Array, flat: Flat, R: int, rules: Rules) -> jax.Array:
    """Sums over the tokens of each of R sequences, wherever they lie."""
    return over(APART, rules)(jnp.zeros(R, jnp.float32).at[flat["rows"]].add(x_N))


def answer_log_probabilities(h_ND: jax.Array, w: jax.Array, flat: Flat, R: int, head: Head) -> jax.Array:
    """The log-probability of each of R sequences: Σ weight · log p(target)."""
    return of_sequences(flat["weights"] * token_log_probabilities(h_ND, w, flat["targets"], head), flat, R, head.rules)


def _preferred(loss: jax.Array, rewards_R: jax.Array, rules: Rules) -> Sums:
    """Sums of the losses and rewards of pairs: sequence 2i is the better answer, 2i + 1 the worse one.

    Devices that share sequences all know all of these; each gives an equal part.
    """
    shared = math.prod(rules.axes.get(axis, 1) for axis in APART)
    chosen, rejected = rewards_R[::2], rewards_R[1::2]
    others = {
        "chosen_rewards": chosen,
        "rejected_rewards": rejected,
        "reward_margins": chosen - rejected,
        "reward_accuracies": (chosen > rejected).astype(jnp.float32),
    }
    return jnp.sum(loss) / shared, {name: jnp.sum(x) / shared for name, x in others.items()}


def _dpo(h_ND: jax.Array, w: jax.Array, flat: Flat, R: int, head: Head, settings: Settings) -> Sums:
    """-log σ of the margin between the rewards β·(log p - log p of the reference model); arXiv 2305.18290, eq. 7."""
    reference_R = of_sequences(flat["reference"], flat, R, head.rules)
    rewards_R = settings.beta * (answer_log_probabilities(h_ND, w, flat, R, head) - reference_R)
    return _preferred(jax.nn.softplus(rewards_R[1::2] - rewards_R[::2]), rewards_R, head.rules)


def _orpo(h_ND: jax.Array, w: jax.Array, flat: Flat, R: int, head: Head, settings: Settings) -> Sums:
    """-log p of the chosen answer, and -β·log σ of the log odds ratio; p is the mean over tokens. arXiv 2403.07691."""
    tokens_R = of_sequences(flat["weights"], flat, R, head.rules)
    logp_R = answer_log_probabilities(h_ND, w, flat, R, head) / jnp.maximum(tokens_R, 1.0)
    # An answer that is certain has infinite odds, and no gradient: p stays below 1.
    odds_R = logp_R - jnp.log(-jnp.expm1(jnp.minimum(logp_R, -1e-6)))
    losses = settings.beta * jax.nn.softplus(odds_R[1::2] - odds_R[::2]) - logp_R[::2]
    return _preferred(losses, settings.beta * logp_R, head.rules)


def _pairs(batch: Flat, rules: Rules) -> jax.Array:
    return jnp.asarray(math.prod(batch["tokens"].shape[:2]) / 2 / rules.axes.get("context", 1), jnp.float32)


_TOKENS = Objective(loss=_next_token, amount=lambda batch, rules: jnp.sum(batch["weights"]))

# `sft` is `pretraining` on data whose weights are 0 outside the answers.
OBJECTIVES: dict[str, Objective] = {
    "pretraining": _TOKENS,
    "sft": _TOKENS,
    "dpo": Objective(loss=_dpo, amount=_pairs),
    "orpo": Objective(loss=_orpo, amount=_pairs),
}
