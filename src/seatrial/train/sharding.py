"""The layout of every tensor, as tables, and the collectives that follow from them.

A parallelism strategy is not code here. A parameter names its dimensions ("embed", "heads", …) where it is declared;
three tables map those names to mesh axes: at *rest*, in *compute*, and for the *optimizer* state. Where two tables
differ, a collective closes the gap:

    rest → compute       all_gather before use; its transpose reduce-scatters the gradient     (FSDP, ZeRO-3)
    gradient → optimizer psum, or psum_scatter where the optimizer's table splits further       (DP, ZeRO-1)
    optimizer → rest     all_gather of the updated shard                                        (ZeRO-1)

Axes of size 1 drop out of the tables, so a single device runs the same program without a collective. Everything runs
inside one `shard_map` without automatic replication tracking: each collective below is written with its own transpose,
as Megatron-LM does (arXiv 1909.08053 §3, arXiv 2205.05198 §4.2), and nothing else communicates.

`PartitionSpec` appears in this module only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from seatrial.spec import RunSpec

Axes = tuple[str, ...]
Dims = tuple[Axes, ...]  # per dimension of a tensor, the mesh axes that split it, outermost first

REST: dict[str, Axes] = {
    "layers": ("pipeline",),
    "embed": ("fsdp",),
    "vocab": ("tensor",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "ffn": ("tensor",),
}
COMPUTE: dict[str, Axes] = REST | {"embed": ()}
OPTIMIZER: dict[str, Axes] = REST
OPTIMIZER_ZERO1: dict[str, Axes] = REST | {"embed": ("fsdp", "data")}

BATCH: Axes = ("data", "fsdp")
SEQUENCE: Axes = ("context",)


@dataclass(frozen=True)
class Placement:
    """The layout of one parameter: a tuple of mesh axes per dimension, from each of the three tables.

    `partial`: the axes over which its gradient, as the backward pass leaves it at rest, is still a partial sum.
    `parts`: where not 0, the last dimension lies whole over `tensor`, but is used in so many parts; see `own_part`.
    """

    rest: Dims
    compute: Dims
    optimizer: Dims
    partial: Axes = ()
    reduce_dtype: str = "float32"  # in which that gradient crosses the network
    parts: int = 0


@dataclass(frozen=True)
class Rules:
    """The tables as they apply to one mesh: `axes` keeps those of size > 1 with their sizes."""

    axes: Mapping[str, int]
    optimizer: Mapping[str, Axes]
    boundary: str  # row of BOUNDARIES: how activations cross into and out of a tensor-parallel block
    partial: Axes  # axes over which devices compute different parts of the loss
    reduce_dtype: str = "float32"  # in which gradients cross the network
    tensor_reduce_dtype: str | None = None  # in which partial results cross it; None: in their own
    copied_heads: int = 0  # key/value heads where they are fewer than the devices of `tensor`, several of which use one

    @property
    def batch(self) -> Axes:
        return tuple(axis for axis in BATCH if axis in self.axes)

    def dims(self, table: Mapping[str, Axes], names: tuple[str, ...]) -> Dims:
        """A table's row for a tensor with these dimension names."""
        whole = ("kv_heads",) if self.copied_heads else ()
        return tuple(
            tuple(axis for axis in table.get(name, ()) if axis in self.axes and name not in whole) for name in names
        )

    def placement(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Placement:
        """The placement of a parameter. Raises ValueError, naming the dimension, where a split does not divide it."""
        rest = self.dims(REST, names)
        parts = self.copied_heads if "kv_heads" in names else 0
        partial = dict.fromkeys((*self.partial, *(("tensor",) if parts else ())))
        placement = Placement(
            rest=rest,
            compute=self.dims(COMPUTE, names),
            optimizer=self.dims(self.optimizer, names),
            reduce_dtype=self.reduce_dtype,
            partial=tuple(axis for axis in partial if not any(axis in axes for axes in rest)),
            parts=parts,
        )
        for name, size, axes in zip(names, shape, placement.optimizer, strict=True):
            parts = math.prod(self.axes[axis] for axis in axes)
            if size % parts:
                raise ValueError(f"{name} = {size} cannot be split over {' × '.join(axes)} = {parts} devices")
        return placement


def make_rules(spec: RunSpec) -> Rules:
    """The tables for a spec's mesh and strategy."""
    axes = {axis: size for axis, size in spec.mesh.items() if size > 1}
    sequence_parallel = spec.parallelism.sequence_parallel
    heads, tensor = spec.model.num_kv_heads, spec.mesh["tensor"]
    splits_tokens = ("pipeline", *BATCH, *SEQUENCE, *(("tensor",) if sequence_parallel else ()))
    return Rules(
        axes=axes,
        optimizer=OPTIMIZER_ZERO1 if spec.parallelism.zero1 else OPTIMIZER,
        boundary="alone" if "tensor" not in axes else "sequence" if sequence_parallel else "replicated",
        partial=tuple(axis for axis in splits_tokens if axis in axes),
        reduce_dtype=spec.precision.reduce_dtype,
        tensor_reduce_dtype=spec.precision.tensor_reduce_dtype,
        copied_heads=heads if heads < tensor else 0,
    )


# --- global arrays ----------------------------------------------------------------------------------------------------


def partition_spec(dims: Dims) -> PartitionSpec:
    return PartitionSpec(*(axes or None for axes in dims))


def named_sharding(mesh: Mesh, dims: Dims) -> NamedSharding:
    return NamedSharding(mesh, partition_spec(dims))


def batch_dims(rules: Rules) -> Dims:
    """[A, B, T] of a global batch: sequences over the batch axes, tokens over the sequence axes."""
    return ((), rules.batch, tuple(axis for axis in SEQUENCE if axis in rules.axes))


def over(axes: Axes, rules: Rules, reduce: Callable[..., jax.Array] = lax.psum) -> Callable[[jax.Array], jax.Array]:
    """`lax.psum` or `lax.pmax` over those of `axes` that the mesh has; the identity where it has none."""
    present = tuple(axis for axis in axes if axis in rules.axes)
    return partial(reduce, axis_name=present) if present else lambda x: x


# --- parameters and gradients, inside shard_map -----------------------------------------------------------------------


def gather(x: jax.Array, have: Dims, want: Dims) -> jax.Array:
    """Brings a local shard from placement `have` to the coarser `want`: all_gather over the axes that `want` lacks."""
    for dim, (split, kept) in enumerate(zip(have, want, strict=True)):
        if extra := split[len(kept) :]:
            x = lax.all_gather(x, extra, axis=dim, tiled=True)
    return x


def reduce_scatter(x: jax.Array, have: Dims, want: Dims, dtype: str) -> jax.Array:
    """The transpose of `gather(want → have)`: sums partial values, in `dtype`, and keeps this device's shard."""
    for dim, (kept, split) in enumerate(zip(have, want, strict=True)):
        if extra := split[len(kept) :]:
            x = lax.psum_scatter(x.astype(dtype), extra, scatter_dimension=dim, tiled=True)
    return x


def to_rest(gradient: jax.Array, placement: Placement) -> jax.Array:
    """A weight's gradient, as a product leaves it in the compute placement, summed and split as at rest."""
    return reduce_scatter(gradient, placement.compute, placement.rest, placement.reduce_dtype)


def take_shard(x: jax.Array, have: Dims, want: Dims) -> jax.Array:
    """This device's part of a tensor that all devices of the extra axes hold alike; no communication."""
    for dim, (kept, split) in enumerate(zip(have, want, strict=True)):
        if extra := split[len(kept) :]:
            size = x.shape[dim] // lax.axis_size(extra)
            x = lax.dynamic_slice_in_dim(x, lax.axis_index(extra) * size, size, axis=dim)
    return x


def positions(shape: tuple[int, ...], dims: Dims) -> list[jax.Array]:
    """For each dimension of a local shard, the numbers of its elements in the whole tensor, shaped to broadcast."""
    starts = [lax.axis_index(axes) * size if axes else 0 for size, axes in zip(shape, dims, strict=True)]
    return [
        (start + jnp.arange(size)).reshape(-1, *(1,) * (len(shape) - 1 - dim))
        for dim, (start, size) in enumerate(zip(starts, shape, strict=True))
    ]


def own_part(w: jax.Array, placement: Placement) -> jax.Array:
    """The key/value head that this device uses of a weight that lies whole over `tensor`; any other weight itself.

    Its transpose leaves the rest of the gradient 0, so the gradient is a partial sum over `tensor`.
    """
    if not placement.parts:
        return w
    size = w.shape[-1] // placement.parts
    number = lax.axis_index("tensor") * placement.parts // lax.axis_size("tensor")
    return lax.dynamic_slice_in_dim(w, number * size, size, axis=-1)


def reduce_gradient(gradient: jax.Array, placement: Placement, rules: Rules) -> jax.Array:
    """Sums a gradient, as the backward pass leaves it in the rest placement, into the optimizer's placement."""
    at_rest = {axis for axes in placement.rest for axis in axes}
    scattered = {axis for axes in placement.optimizer for axis in axes} - at_rest
    if whole := tuple(axis for axis in placement.partial if axis not in scattered):
        gradient = lax.psum(gradient.astype(placement.reduce_dtype), whole)
    return reduce_scatter(gradient, placement.rest, placement.optimizer, placement.reduce_dtype)


def global_norm(
    tree: Any, placements: Any, rules: Rules, split: Callable[[Placement], Dims] = lambda place: place.optimizer
) -> jax.Array:
    """The L2 norm over all of a tree like the parameters, which lies as `split` says, in one psum."""
    total = jnp.float32(0)
    for x, placement in zip(jax.tree.leaves(tree), jax.tree.leaves(placements), strict=True):
        parts = math.prod(rules.axes[axis] for axes in split(placement) for axis in axes)
        copies = math.prod(rules.axes.values()) // parts
        total += jnp.sum(jnp.square(x.astype(jnp.float32))) / copies
    return jnp.sqrt(lax.psum(total, tuple(rules.axes)) if rules.axes else total)


# --- activations across the tensor axis, inside shard_map -------------------------------------------------------------


def _all_reduce(x: jax.Array) -> jax.Array:
    total: jax.Array = lax.psum(x, "tensor")
    return total


# Megatron's f and g: identity one way, all-reduce the other
_copy = jax.custom_vjp(lambda x: x)
_copy.defvjp(lambda x: (x, None), lambda _, g: (_all_reduce(g),))
_reduce = jax.custom_vjp(_all_reduce)
_reduce.defvjp(lambda x: (_all_reduce(x), None), lambda _, g: (g,))


def _own_tokens(numbers_T: jax.Array) -> jax.Array:
    return numbers_T.reshape(lax.axis_size("tensor"), -1)[lax.axis_index("tensor")]


@dataclass(frozen=True)
class Boundary:
    """The functions by which hidden states enter a block split over `tensor`, and by which partial results leave it.

    `tokens`: of the numbers of the tokens inside a block, those that this device holds between blocks.
    """

    enter: Callable[[jax.Array], jax.Array]
    leave: Callable[[jax.Array], jax.Array]
    tokens: Callable[[jax.Array], jax.Array] = lambda numbers_T: numbers_T


BOUNDARIES: dict[str, Boundary] = {
    "alone": Boundary(enter=lambda x: x, leave=lambda x: x),
    "replicated": Boundary(enter=_copy, leave=_reduce),
    # between blocks each device keeps its part of the tokens; JAX's own transposes are the right ones here
    "sequence": Boundary(
        enter=partial(lax.all_gather, axis_name="tensor", axis=1, tiled=True),
        leave=partial(lax.psum_scatter, axis_name="tensor", scatter_dimension=1, tiled=True),
        tokens=_own_tokens,
    ),
}


def boundary_of(rules: Rules) -> Boundary:
    """The row of a mesh, whose sums over `tensor` are in the format that the run asks for."""
    row, dtype = BOUNDARIES[rules.boundary], rules.tensor_reduce_dtype
    if dtype is None or rules.boundary == "alone":
        return row

    def summed_in(cross: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: cross(x.astype(dtype)).astype(x.dtype)  # so that the gradient crosses in it too

    return Boundary(enter=summed_in(row.enter), leave=summed_in(row.leave), tokens=row.tokens)


def tensor_offset(rules: Rules, local_size: int) -> jax.Array | int:
    """The first index of this device's part of a dimension split over `tensor`."""
    return lax.axis_index("tensor") * local_size if "tensor" in rules.axes else 0


def sequence_numbers(rules: Rules, local_size: int, micro: jax.Array | int) -> jax.Array:
    """The numbers of this device's sequences in micro-batch number `micro`, counted over the step and all devices."""
    replica = lax.axis_index(rules.batch) if rules.batch else 0
    replicas = math.prod(rules.axes[axis] for axis in rules.batch)
    return (micro * replicas + replica) * local_size + jnp.arange(local_size)


def token_offset(rules: Rules, local_size: int) -> jax.Array | int:
    """The position of this device's first token in its sequence."""
    return lax.axis_index("context") * local_size if "context" in rules.axes else 0
