"""The updates of parameters: rows of one table; clipping.

An update sees the shard that the optimizer's placement gives this device. Nearly every row is elementwise; those that
need a statistic of a whole tensor take it from `Tensor`, which knows how it is split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from seatrial.spec import Optimizer
from seatrial.train.params import Declaration
from seatrial.train.sharding import Dims, Placement

Slots = dict[str, jax.Array]  # what the optimizer remembers of a parameter
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """The layout of a whole parameter: its shape, the mesh axes that split each dimension, and which dimensions make up
    one tensor; the others number tensors that are stacked."""

    shape: Shape
    split: Dims
    dims: Shape

    def total(self, x: jax.Array, dims: Shape) -> jax.Array:
        """The sum over these dimensions of what `x` is this device's shard of; they stay, with size 1."""
        axes = tuple(axis for dim in dims for axis in self.split[dim])
        local = x.sum(dims, keepdims=True)
        return lax.psum(local, axes) if axes else local

    def mean(self, x: jax.Array, dims: Shape) -> jax.Array:
        """`total`, divided by the number of elements."""
        return self.total(x, dims) / math.prod(self.shape[dim] for dim in dims)


def tensor_of(leaf: Declaration, place: Placement) -> Tensor:
    """A parameter as the optimizer sees it: each layer's is a tensor of its own."""
    dims = tuple(dim for dim, name in enumerate(leaf.names) if name != "layers")
    return Tensor(shape=leaf.shape, split=place.optimizer, dims=dims)


class Now(NamedTuple):
    """Facts that an update needs beside its numbers: `step` counts from 0; rate and weight decay; the tensor.

    `apart`, of `apart_on`, stands between the new slots and the new parameter, which follows from them.
    """

    step: jax.Array
    rate: jax.Array
    decay: float
    tensor: Tensor
    apart: Callable[[Any], Any] = lax.optimization_barrier


def apart_on(backend: str) -> Callable[[Any], Any]:
    """A barrier on a CPU, where XLA else fuses each output apart and copies the donated buffers it could have reused.

    On a GPU nothing: there one kernel writes all outputs, and behind a barrier a second one would read the slots again.
    """
    return lax.optimization_barrier if backend == "cpu" else _identity


def _identity(x: Any) -> Any:
    return x


# (param, gradient, slots, now, settings) → (param, slots), all in float32
Update = Callable[[jax.Array, jax.Array, Slots, Now, Optimizer], tuple[jax.Array, Slots]]


@dataclass(frozen=True)
class Algorithm:
    """An optimizer: its update, and its slots, which all begin with zeros.

    Slot name → which of a tensor's dimensions have size 1 in it.
    """

    update: Update
    slots: Mapping[str, Callable[[Shape], Shape]]

    def slot(self, name: str, tensor: Tensor) -> Tensor:
        """The layout of a slot of a parameter: as the parameter, but for the dimensions that have size 1 in it."""
        ones = self.slots[name](tensor.dims)
        shape = tuple(1 if dim in ones else size for dim, size in enumerate(tensor.shape))
        return replace(
            tensor, shape=shape, split=tuple(() if d in ones else axes for d, axes in enumerate(tensor.split))
        )


def clip_scale(norm: jax.Array, clip_norm: float | None) -> jax.Array:
    """The factor that brings gradients of this global norm to at most `clip_norm`; 1 where there is no limit."""
    return jnp.float32(1.0) if clip_norm is None else jnp.minimum(1.0, clip_norm / (norm + 1e-6))


# --- weight decay -----------------------------------------------------------------------------------------------------


def _coupled(update: Update) -> Update:
    """Decay as part of the gradient (L2), as in torch.optim except AdamW."""
    return lambda p, g, slots, now, settings: update(p, g + now.decay * p, slots, now, settings)


def _decoupled(update: Update) -> Update:
    """Decay beside the update (arXiv 1711.05101)."""
    return lambda p, g, slots, now, settings: update(p * (1 - now.rate * now.decay), g, slots, now, settings)


# --- updates ----------------------------------------------------------------------------------------------------------


def _moments(g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, jax.Array]:
    b1, b2 = settings.beta1, settings.beta2
    m = b1 * slots["m"] + (1 - b1) * g
    v = b2 * slots["v"] + (1 - b2) * jnp.square(g)
    moments: tuple[jax.Array, jax.Array] = now.apart((m, v))
    return moments


def _corrections(now: Now, settings: Optimizer) -> tuple[jax.Array, jax.Array]:
    """1 - β^t for both moments."""
    t = (now.step + 1).astype(jnp.float32)
    return 1 - settings.beta1**t, 1 - settings.beta2**t


def _adam(p: jax.Array, g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, Slots]:
    m, v = _moments(g, slots, now, settings)
    of_m, of_v = _corrections(now, settings)
    return p - now.rate * (m / of_m) / (jnp.sqrt(v / of_v) + settings.epsilon), {"m": m, "v": v}


def _adamw_fp32(p: jax.Array, g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, Slots]:
    """Hugging Face's former AdamW: epsilon before the bias correction, decay of the parameter as just updated."""
    m, v = _moments(g, slots, now, settings)
    of_m, of_v = _corrections(now, settings)
    p = p - now.rate * jnp.sqrt(of_v) / of_m * m / (jnp.sqrt(v) + settings.epsilon)
    return p * (1 - now.rate * now.decay), {"m": m, "v": v}


def _adamax(p: jax.Array, g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, Slots]:
    m = settings.beta1 * slots["m"] + (1 - settings.beta1) * g
    u = jnp.maximum(settings.beta2 * slots["u"], jnp.abs(g) + settings.epsilon)
    m, u = now.apart((m, u))
    return p - now.rate / _corrections(now, settings)[0] * m / u, {"m": m, "u": u}


def _sgd(p: jax.Array, g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, Slots]:
    if "momentum" not in slots:
        return p - now.rate * g, {}
    total = now.apart(settings.momentum * slots["momentum"] + g)
    return p - now.rate * total, {"momentum": total}


def _rmsprop(p: jax.Array, g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, Slots]:
    v = now.apart(settings.beta2 * slots["v"] + (1 - settings.beta2) * jnp.square(g))
    p, rest = _sgd(p, g / (jnp.sqrt(v) + settings.epsilon), slots, now, settings)
    return p, {"v": v} | rest


def _adagrad(p: jax.Array, g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, Slots]:
    v = now.apart(slots["v"] + jnp.square(g))
    return p - now.rate * g / (jnp.sqrt(v) + settings.epsilon), {"v": v}


def _adadelta(p: jax.Array, g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, Slots]:
    v = settings.beta2 * slots["v"] + (1 - settings.beta2) * jnp.square(g)
    step = jnp.sqrt(slots["steps"] + settings.epsilon) / jnp.sqrt(v + settings.epsilon) * g
    steps = settings.beta2 * slots["steps"] + (1 - settings.beta2) * jnp.square(step)
    step, v, steps = now.apart((step, v, steps))
    return p - now.rate * step, {"v": v, "steps": steps}


def _rprop(p: jax.Array, g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, Slots]:
    """Only signs count. Step sizes begin with the learning rate of the first step, and nothing else uses it."""
    agreement = jnp.sign(g * slots["previous"])
    size = jnp.where(slots["size"] > 0, slots["size"], now.rate)
    size = jnp.clip(size * jnp.where(agreement > 0, 1.2, jnp.where(agreement < 0, 0.5, 1.0)), 1e-6, 50.0)
    g = jnp.where(agreement < 0, 0.0, g)
    g, size = now.apart((g, size))
    return p - jnp.sign(g) * size, {"previous": g, "size": size}


def _novograd(p: jax.Array, g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, Slots]:
    """arXiv 1905.11286 as NeMo has it: `v` begins with the first norm, and gradients are not averaged in `m`."""
    square = now.tensor.total(jnp.square(g), now.tensor.dims)
    v = jnp.where(slots["v"] == 0, square, settings.beta2 * slots["v"] + (1 - settings.beta2) * square)
    m = settings.beta1 * slots["m"] + g / (jnp.sqrt(v) + settings.epsilon) + now.decay * p
    m = now.apart(m)
    return p - now.rate * m, {"m": m, "v": v}


def _adafactor(p: jax.Array, g: jax.Array, slots: Slots, now: Now, settings: Optimizer) -> tuple[jax.Array, Slots]:
    """arXiv 1804.04235 with a given rate, scaled by the size of the parameter, and no first moment.

    NeMo's class multiplies that scale into its rate again in every step, which is a slip; here it counts once.
    """
    tensor = now.tensor
    b2 = 1 - (now.step + 1).astype(jnp.float32) ** -0.8

    def rms(x: jax.Array) -> jax.Array:
        return jnp.sqrt(tensor.mean(jnp.square(x), tensor.dims))

    def remember(slot: str, dims: Shape) -> jax.Array:
        return b2 * slots[slot] + (1 - b2) * tensor.mean(jnp.square(g) + 1e-30, dims)

    rows = remember("rows", _rows(tensor.dims))
    columns = remember("columns", _columns(tensor.dims))
    scale = lax.rsqrt(rows)
    if len(tensor.dims) > 1:
        scale = lax.rsqrt(rows / tensor.mean(rows, tensor.dims[-2:-1])) * lax.rsqrt(columns)
    step = g * scale
    step = step / jnp.maximum(1.0, rms(step)) + now.decay * p
    return p - now.rate * jnp.maximum(1e-3, rms(p)) * step, {"rows": rows, "columns": columns}


# --- the table --------------------------------------------------------------------------------------------------------


def _rows(dims: Shape) -> Shape:
    return dims[-1:] if len(dims) > 1 else ()


def _columns(dims: Shape) -> Shape:
    return dims[-2:-1] if len(dims) > 1 else dims


def _row(update: Update, *names: str) -> Algorithm:
    """A row whose slots are all of the parameter's shape."""
    return Algorithm(update, dict.fromkeys(names, lambda dims: ()))


# Classes of these names: torch.optim; NxD's AdamW_FP32OptimParams; NeMo's Novograd and Adafactor.
OPTIMIZERS: dict[str, Algorithm] = {
    "adamw": _row(_decoupled(_adam), "m", "v"),
    "adamw_fp32": _row(_adamw_fp32, "m", "v"),
    "adam": _row(_coupled(_adam), "m", "v"),
    "adamax": _row(_coupled(_adamax), "m", "u"),
    "sgd": _row(_coupled(_sgd), "momentum"),
    "rmsprop": _row(_coupled(_rmsprop), "v", "momentum"),
    "adagrad": _row(_coupled(_adagrad), "v"),
    "adadelta": _row(_coupled(_adadelta), "v", "steps"),
    "rprop": _row(_rprop, "previous", "size"),
    "novograd": Algorithm(_novograd, {"m": lambda dims: (), "v": lambda dims: dims}),
    "adafactor": Algorithm(_adafactor, {"rows": _rows, "columns": _columns}),
}


def make_optimizer(settings: Optimizer) -> Algorithm:
    """The row of an algorithm, without a slot for momentum where there is none."""
    row = OPTIMIZERS[settings.algorithm]
    return Algorithm(row.update, {n: s for n, s in row.slots.items() if n != "momentum" or settings.momentum})
