"""The same training step, partitioned in four ways; `sharding_modes.py` measures them and says what they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AxisType, Mesh, NamedSharding, reshard
from jax.sharding import PartitionSpec as P

from seatrial.spec import RunSpec
from seatrial.train import model, objectives, optimizer, params, precision, sharding, step
from seatrial.train.attention import ATTENTION

Loss = Callable[[Any, Any], jax.Array]


def update(spec: RunSpec, loss: Loss, state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
    """One AdamW step of a loss over global arrays, in the trainer's own formulas."""
    declarations = params.declare(spec)
    total_weight = jnp.sum(batch["weights"])

    def micro_step(carry: Any, micro: Any) -> tuple[Any, None]:
        added = jax.value_and_grad(lambda p: loss(p, micro) / total_weight)(state["params"])
        return jax.tree.map(jnp.add, carry, added), None

    start = (jnp.float32(0), jax.tree.map(jnp.zeros_like, state["params"]))
    (value, gradients), _ = lax.scan(micro_step, start, batch)
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradients)))
    scale = optimizer.clip_scale(norm, spec.optimizer.clip_norm)
    rate = optimizer.learning_rate(state["step"], spec.optimizer, spec.steps)
    adamw = partial(optimizer.adamw, step=state["step"], rate=rate, optimizer=spec.optimizer)
    updated = jax.tree.map(
        lambda d, p, g, m, v: adamw(p, g * scale, m, v, decay=d.decay),
        declarations, state["params"], gradients, state["m"], state["v"],
    )  # fmt: skip
    p, m, v = jax.tree.transpose(jax.tree.structure(declarations), jax.tree.structure((0, 0, 0)), updated)
    return {"step": state["step"] + 1, "params": p, "m": m, "v": v}, {"loss": value, "grad_norm": norm}


def automatic(spec: RunSpec, mesh: Mesh, islands: bool) -> Loss:
    """The trainer's forward pass as for one device; the compiler partitions it."""
    rules, alone = sharding.make_rules(spec), sharding.Rules(axes={}, optimizer={}, boundary="alone", partial=())
    split = "tensor" if "tensor" in rules.axes else None
    places = params.placements(params.declare(spec), alone)
    products = precision.products_for("cpu")
    attention, boundary = ATTENTION["blocks"], sharding.BOUNDARIES["alone"]
    if islands:
        heads = P(rules.batch, None, split)
        attention = jax.shard_map(attention, mesh=mesh, in_specs=heads, out_specs=heads, check_vma=False)
        lies = lambda *dims: lambda x: lax.with_sharding_constraint(x, NamedSharding(mesh, P(*dims)))  # noqa: E731
        tokens = split if spec.parallelism.sequence_parallel else None
        copy = row_major(mesh, P(rules.batch, None), set(rules.batch))
        products = replace(products, weight_gradient=lambda x, g: precision.dot(copy(x), g, (1, 0), jnp.float32))
        boundary = sharding.Boundary(enter=lies(rules.batch, None, None), leave=lies(rules.batch, tokens, None))
    decoder = model.Decoder(
        spec.model, places, alone, precision.DTYPES[spec.precision.compute_dtype], products, attention, boundary,
        spec.execution.remat, spec.execution.scan_layers,
    )  # fmt: skip
    head = objectives.Head(places["head"], alone, products, tied=False)

    def loss(p: Any, batch: Any) -> jax.Array:
        h_ND = model.hidden_states(p, batch["tokens"], decoder).reshape(-1, spec.model.hidden_dim)
        flat = {name: x.reshape(-1) for name, x in batch.items()}
        return objectives.cross_entropy(h_ND, p["head"], flat["targets"], flat["weights"], head)

    return loss


def row_major(mesh: Any, split: P, manual: set[str]) -> Callable[[jax.Array], jax.Array]:
    """x_NI → its transpose, copied to rows on each device: the partitioner would gather x for a layout constraint."""
    turned = P(*reversed(split))
    copy = lambda x: with_layout_constraint(x.T, Layout((0, 1)))  # noqa: E731
    return jax.shard_map(copy, mesh=mesh, in_specs=split, out_specs=turned, axis_names=manual, check_vma=False)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def linear(x: jax.Array, w: jax.Array, full: P, out: P) -> jax.Array:
    """x[B, T, I] · w[I, O] with the result laid out as `out`; `full` is the weight without its FSDP split."""
    return linear_forward(x, w, full, out)[0]


def linear_forward(x: jax.Array, w: jax.Array, full: P, out: P) -> tuple[jax.Array, Any]:
    return product(x, reshard(w.astype(x.dtype), full), ((2,), (0,)), out, x.dtype), (x, w)


def linear_backward(full: P, out: P, residuals: Any, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = residuals
    g = reshard(g, P(out[0], None, out[2]))  # all tokens: both products need them
    dx = product(g, reshard(w.astype(x.dtype), full), ((2,), (1,)), jax.typeof(x).sharding.spec, x.dtype)
    return dx, weight_gradient(x, g, jax.typeof(w).sharding.spec)


linear.defvjp(linear_forward, linear_backward)


def product(a: jax.Array, b: jax.Array, contract: Any, out: P, dtype: Any) -> jax.Array:
    to = NamedSharding(jax.sharding.get_abstract_mesh(), out)
    exact = lax.dot_general(a, b, (contract, ((), ())), preferred_element_type=jnp.float32, out_sharding=to)
    return exact.astype(dtype)


def weight_gradient(x: jax.Array, g: jax.Array, out: P) -> jax.Array:
    x, g = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    mesh = jax.sharding.get_abstract_mesh()
    copy = row_major(mesh, jax.typeof(x).sharding.spec, set(mesh.axis_names))
    return product(copy(x), g, ((1,), (0,)), out, jnp.float32)


def explicit(spec: RunSpec) -> Loss:
    """The same decoder and fused head with every sharding stated in the program's types."""
    rules, m = sharding.make_rules(spec), spec.model
    batch, split = rules.batch or None, "tensor" if "tensor" in rules.axes else None
    whole, heads = P(batch, None, None), P(batch, None, split)
    between = P(batch, split, None) if spec.parallelism.sequence_parallel else whole
    attention = jax.shard_map(ATTENTION["blocks"], in_specs=heads, out_specs=heads, check_vma=False)
    dtype = precision.DTYPES[spec.precision.compute_dtype]
    inward, outward = P(None, split), P(split, None)

    @jax.custom_vjp
    def lookup(w_VD: jax.Array, ids_BT: jax.Array) -> jax.Array:
        return reshard(w_VD.astype(dtype), outward).at[ids_BT].get(out_sharding=whole)

    def lookup_backward(residuals: Any, g_BTD: jax.Array) -> tuple[jax.Array, None]:
        w_VD, ids_BT = residuals
        rows = jax.vjp(lambda w: w.at[ids_BT].get(out_sharding=whole), reshard(w_VD, outward))[1]
        return reshard(rows(g_BTD.astype(jnp.float32))[0], jax.typeof(w_VD).sharding), None

    lookup.defvjp(lambda w, ids: (lookup(w, ids), (w, ids)), lookup_backward)

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        h = reshard(model.rms_norm(x, w["attention_norm"], m.norm_epsilon), whole)
        by_head = (*h.shape[:2], -1, m.head_dim)
        q, k, v = (linear(h, w[name], inward, heads).reshape(by_head) for name in ("query", "key", "value"))
        tables = model.rope_tables(m, h.shape[1])
        context = attention(model.rotate(q, *tables), model.rotate(k, *tables), v)
        x += linear(context.reshape(*h.shape[:2], -1), w["output"], outward, between)
        h = reshard(model.rms_norm(x, w["ffn_norm"], m.norm_epsilon), whole)
        gated = jax.nn.silu(linear(h, w["gate"], inward, heads)) * linear(h, w["up"], inward, heads)
        return x + linear(gated, w["down"], outward, between), None

    @jax.custom_vjp
    def cross_entropy(h_BTD: jax.Array, w: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
        return head(h_BTD, w, targets, weights)[0]

    def head(h_BTD: jax.Array, w: jax.Array, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, Any]:
        w_DV = reshard(w.astype(dtype), inward)
        logits_BTV = product(h_BTD, w_DV, ((2,), (0,)), heads, jnp.float32)
        logsumexp_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
        is_target_BTV = targets[..., None] == reshard(jnp.arange(m.vocab_size), P(split))
        losses_BT = logsumexp_BT - jnp.where(is_target_BTV, logits_BTV, 0).sum(axis=-1)
        probabilities_BTV = jnp.exp(logits_BTV - logsumexp_BT[..., None])
        dlogits_BTV = ((probabilities_BTV - is_target_BTV) * weights[..., None]).astype(dtype)
        dh_BTD = product(dlogits_BTV, w_DV, ((2,), (1,)), whole, dtype)
        dw_DV = weight_gradient(h_BTD, dlogits_BTV, jax.typeof(w).sharding.spec)
        return jnp.sum(weights * losses_BT), (dh_BTD, dw_DV)

    cross_entropy.defvjp(
        head, lambda residuals, g: (*((g * r.astype(jnp.float32)).astype(r.dtype) for r in residuals), None, None)
    )

    def loss(p: Any, data: Any) -> jax.Array:
        x = reshard(lookup(p["embedding"], data["tokens"]), between)
        x = lax.scan(model.REMAT[spec.execution.remat](layer), x, p["layers"])[0]
        h = reshard(model.rms_norm(x, p["final_norm"], m.norm_epsilon), whole)
        return cross_entropy(h, p["head"], data["targets"], data["weights"])

    return loss


def make_programs(spec: RunSpec, mesh: Mesh) -> dict[str, tuple[Mesh, Any]]:
    """Name → mesh (with its kind of axes) and jitted step(state, batch)."""
    trainer = step.make_trainer(spec, mesh)
    typed = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * len(mesh.axis_names))
    shardings = (trainer.state_shardings, trainer.batch_sharding)

    def over(name: str) -> Any:
        loss = explicit(spec) if name == "explicit" else automatic(spec, mesh, islands=name == "+ islands")
        how = {} if name == "explicit" else {"in_shardings": shardings, "out_shardings": (shardings[0], None)}
        return jax.jit(partial(update, spec, loss), donate_argnums=0, **how)

    return {
        "shard_map": (mesh, trainer.step),
        "automatic": (mesh, over("automatic")),
        "+ islands": (mesh, over("+ islands")),
        "explicit": (typed, over("explicit")),
    }
