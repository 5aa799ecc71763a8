"""Number formats: fp8 against NumPy's own conversions and bounds from the formats, random rounding, reductions."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from seatrial.spec import NOT_QUANTIZATIONS, QUANTIZATIONS, Batch, Precision, RunSpec
from seatrial.train import fp8
from seatrial.train.data.examples import FIELDS
from seatrial.train.fp8 import HISTORY, RECIPES, Fp8, dequantize, find_recipe, largest, linear_fp8, quantize, scale_for
from seatrial.train.mesh import make_mesh
from seatrial.train.params import declare
from seatrial.train.precision import PRODUCTS, round_at_random
from seatrial.train.random import make_key
from seatrial.train.sharding import Placement
from seatrial.train.trainer import make_trainer
from tests.helpers.trainer import TINY, make_spec, run_steps

ALONE = Placement(rest=((), ()), compute=((), ()), optimizer=((), ()))
FORMATS = {
    # format → (its own type in ml_dtypes, largest value, bits of mantissa, exponent of the least normal number)
    "e4m3fn": (ml_dtypes.float8_e4m3fn, 448.0, 3, -6),
    "e5m2": (ml_dtypes.float8_e5m2, 57344.0, 2, -14),
    "e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, 240.0, 3, -7),
    "e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, 57344.0, 2, -15),
}


def on_grid(x: np.ndarray, name: str, amax: float | None = None) -> np.ndarray:
    """A tensor in a format and back, in float64, written from the definition."""
    dtype, limit, _, _ = FORMATS[name]
    scale = 2.0 ** np.floor(np.log2(limit / (np.abs(x).max() if amax is None else amax)))
    return np.clip(x.astype(np.float64) * scale, -limit, limit).astype(dtype).astype(np.float64) / scale


# --- rounding to fp8 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1e-24, 1e-6, 1.0, 3e4, 1e30])
@pytest.mark.parametrize("name", FORMATS)
def test_a_tensor_is_rounded_as_numpy_does_it_and_within_the_format_s_bound(name, width, rng):
    dtype, limit, mantissa, least = FORMATS[name]
    assert float(jnp.finfo(dtype).max) == limit
    x = (width * rng.normal(size=(64, 48))).astype(np.float32)
    x[0, 0] = 0.0

    @jax.jit
    def there_and_back(x):
        scale = scale_for(largest(x), dtype)
        return dequantize(quantize(x, scale, dtype), scale, jnp.float32), scale

    rounded, scale = map(np.asarray, there_and_back(x))
    np.testing.assert_array_equal(rounded, on_grid(x, name).astype(np.float32))
    # half a unit in the last place; below the least normal number units do not shrink any more
    unit = np.maximum(2.0 ** np.floor(np.log2(np.abs(x) + 1e-45)), 2.0**least / scale) * 2.0**-mantissa
    assert (np.abs(rounded - x) <= unit / 2).all()
    np.testing.assert_array_equal(rounded.astype(ml_dtypes.bfloat16).astype(np.float32), rounded)


@pytest.mark.parametrize("name", FORMATS)
def test_scales_are_the_largest_powers_of_two_that_fit(name):
    dtype, limit, _, _ = FORMATS[name]
    for amax in [limit, np.nextafter(np.float32(limit), np.float32(np.inf)), limit / 2, 1.0, 1e-3, 3e38]:
        scale = float(scale_for(jnp.float32(amax), dtype))
        assert np.log2(scale) == np.floor(np.log2(scale))
        assert scale * float(np.float32(amax)) <= limit < 2 * scale * float(np.float32(amax))
    assert float(scale_for(jnp.float32(0), dtype)) == float(scale_for(jnp.float32(1e-38), dtype)) == 2.0**100


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bad):
    x = jnp.array([1.0, bad, -2.0])
    scale = scale_for(largest(x), jnp.float8_e4m3fn)
    assert not np.isfinite(np.asarray(dequantize(quantize(x, scale, jnp.float8_e4m3fn), scale, jnp.float32))).all()


# --- products ---------------------------------------------------------------------------------------------------------


def names_of(recipe: str) -> tuple[str, str]:
    row = RECIPES[recipe]
    return jnp.dtype(row.operands).name.removeprefix("float8_"), jnp.dtype(row.gradients).name.removeprefix("float8_")


@pytest.mark.parametrize(("recipe", "row", "compute"), [
    *((recipe, "cpu", jnp.bfloat16) for recipe in RECIPES),
    ("current", "reference", jnp.float32),
    ("current", "gpu", jnp.bfloat16),
])  # fmt: skip
def test_the_products_are_those_of_the_rounded_operands_and_near_the_exact_ones(recipe, row, compute, rng):
    operands, gradients = names_of(recipe)
    x = np.asarray(jnp.asarray(rng.normal(size=(2, 24, 64)), compute))
    w = (0.02 * rng.normal(size=(64, 40))).astype(np.float32)
    g = np.asarray(jnp.asarray(1e-6 * rng.normal(size=(2, 24, 40)), compute))
    # as if the step before had seen the same: a delayed scale is then that of the tensor itself
    earlier = np.array([np.abs(t.astype(np.float32)).max() for t in (x, w, g)], np.float32)
    given = earlier if RECIPES[recipe].delayed else None
    rule = Fp8(RECIPES[recipe], PRODUCTS[row])

    @jax.jit
    def run(x, w, given, g):
        y, vjp = jax.vjp(lambda x, w, given: linear_fp8(x, w, given, ALONE, rule), x, w, given)
        return y, *vjp(g)

    y, dx, dw, seen = run(x, w, given, g)
    if given is not None:
        np.testing.assert_array_equal(seen, earlier)
    flat_x, flat_g = x.reshape(-1, 64).astype(np.float64), g.reshape(-1, 40).astype(np.float64)
    rx, rw, rg = on_grid(flat_x, operands), on_grid(w, operands), on_grid(flat_g, gradients)
    # relative rounding of each operand, plus what lies below the least normal numbers
    coarse = 2.0 ** -(1 + FORMATS[operands][2]) + 2.0 ** -(1 + FORMATS[gradients][2])
    for ours, rounded, exact, size in (
        (y, rx @ rw, flat_x @ w, np.abs(flat_x) @ np.abs(w)),
        (dx, rg @ rw.T, flat_g @ w.T, np.abs(flat_g) @ np.abs(w.T)),
        (dw, rx.T @ rg, flat_x.T @ flat_g, np.abs(flat_x.T) @ np.abs(flat_g)),
    ):
        ours = np.asarray(ours, np.float64).reshape(rounded.shape)
        last_bit = 2.0**-8 if compute == jnp.bfloat16 and ours is not dw else 2.0**-20
        np.testing.assert_allclose(ours, rounded, rtol=2 * last_bit, atol=1e-5 * np.abs(rounded).max())
        assert (np.abs(ours - exact) <= 1.3 * coarse * size + 1e-3 * size.max()).all()
        assert np.abs(ours - exact).max() > 1e-4 * np.abs(exact).max()  # and fp8 it is


def test_without_a_history_scales_are_one():
    rule = Fp8(RECIPES["delayed"], PRODUCTS["reference"])
    product = jax.jit(lambda earlier: linear_fp8(jnp.full((4, 8), 1e3), jnp.full((8, 2), 0.25), earlier, ALONE, rule))
    assert float(product(jnp.zeros(3))[0, 0]) == 8 * 448 * 0.25  # beyond the range: the largest value
    assert float(product(jnp.array([1e3, 1.0, 0.0]))[0, 0]) == 8 * 1024 * 0.25


def test_a_history_forgets_the_oldest_step_and_what_is_not_finite():
    history = {"up": jnp.zeros((2, 3, HISTORY)).at[:, :, -1].set(9.0).at[0, 0, 0].set(4.0)}
    assert float(fp8.remembered(history)["up"][0, 0]) == 9.0
    later = fp8.remember(history, {"up": jnp.ones((2, 3))}, ())
    assert later["up"].shape == history["up"].shape
    np.testing.assert_array_equal(fp8.remembered(later)["up"], np.array([[4.0, 1, 1], [1, 1, 1]], np.float32))
    rule = Fp8(RECIPES["delayed"], PRODUCTS["reference"])
    x, w = jnp.full((4, 8), jnp.inf), jnp.ones((8, 2))
    seen = jax.jit(jax.grad(lambda earlier: linear_fp8(x, w, earlier, ALONE, rule).sum()))(jnp.ones(3))
    np.testing.assert_array_equal(seen, np.array([0, 1, 1], np.float32))


def test_every_name_has_a_recipe_or_a_reason():
    for name, recipe in QUANTIZATIONS.items():
        assert find_recipe(make_spec(precision=Precision(quantization=name))) == RECIPES[recipe]
    assert set(QUANTIZATIONS.values()) == set(RECIPES)
    assert find_recipe(make_spec()) is None
    for name, reason in NOT_QUANTIZATIONS.items():
        with pytest.raises(ValueError, match=reason):
            find_recipe(make_spec(precision=Precision(quantization=name)))
    with pytest.raises(ValueError, match="fp88"):
        find_recipe(make_spec(precision=Precision(quantization="fp88")))
    with pytest.raises(ValueError, match=r"pipeline = 2.*te_fp8_currentscaling"):
        find_recipe(make_spec({"pipeline": 2}, precision=Precision(quantization="fp8")))


# --- rounding at random -----------------------------------------------------------------------------------------------


def places(shape):
    return jnp.arange(shape[0])[:, None], jnp.arange(shape[1])


def test_rounding_at_random_is_unbiased_and_takes_only_the_neighbours(rng):
    rows, columns = places((64, 4096))
    draw = jax.jit(lambda x: round_at_random(x, jnp.bfloat16, make_key(5), rows, columns))
    for x in np.array([1.001, -1.003, 3.1e-7, -4.2e20, 1e-40], np.float32):
        drawn = np.asarray(draw(jnp.full((64, 4096), x)))
        drawn = drawn.astype(np.float64)
        low, high = np.unique(drawn)  # two values
        share = (x - low) / (high - low)
        assert low < x < high
        assert high - low <= max(2.0**-7 * abs(x), 1e-40)
        # four standard deviations of the mean of that many draws
        assert abs((drawn == high).mean() - share) < 4 * np.sqrt(share * (1 - share) / drawn.size)


def test_rounding_at_random_keeps_what_is_exact_finite_or_not(rng):
    biggest = np.float32(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    exact = rng.normal(size=(8, 64)).astype(ml_dtypes.bfloat16).astype(np.float32)
    exact[0, :6] = [0.0, -0.0, np.inf, -np.inf, biggest, -biggest]
    store = jax.jit(partial(round_at_random, dtype=jnp.bfloat16, key=make_key(1)))
    rows, columns = places((8, 64))
    np.testing.assert_array_equal(np.asarray(store(exact, rows=rows, columns=columns)).astype(np.float32), exact)
    above = np.full((8, 64), np.nextafter(np.float32(np.inf), np.float32(0)))  # rounds to infinity where not held
    np.testing.assert_array_equal(np.asarray(store(above, rows=rows, columns=columns)).astype(np.float32), biggest)
    assert np.isnan(np.asarray(store(jnp.full((8, 64), jnp.nan), rows=rows, columns=columns), np.float32)).all()


# --- the whole step ---------------------------------------------------------------------------------------------------

SMALL = replace(TINY, num_layers=1)
FOUR = {"fsdp": 2, "tensor": 2}


def lowered(spec: RunSpec) -> str:
    """The step as it is handed to the compiler."""
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
    fields = {name: jax.ShapeDtypeStruct(trainer.batch_shape, FIELDS[name]) for name in trainer.batch_shardings}
    return trainer.step.lower(jax.eval_shape(trainer.init), fields).as_text()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_cross_the_network_in_their_format(dtype):
    spec = make_spec({"data": 2, "fsdp": 2}, model=SMALL, precision=Precision(reduce_dtype=dtype))
    sums = re.findall(
        r'"stablehlo\.(?:reduce_scatter|all_reduce)".*?\}\) : \(tensor<([\dx]*)(\w+)>\)', lowered(spec), re.S
    )
    formats = {element for shape, element in sums if shape}  # scalars are sums of losses and norms
    assert formats == {{"float32": "f32", "bfloat16": "bf16"}[dtype]}


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_partial_results_cross_the_tensor_axis_in_their_format(dtype, sequence_parallel):
    """Those of every block, forward and backward; sums of float32 losses, norms and gradients aside."""
    spec = make_spec({"tensor": 2}, model=SMALL, precision=Precision(tensor_reduce_dtype=dtype))
    spec = replace(spec, parallelism=replace(spec.parallelism, sequence_parallel=sequence_parallel))
    sums = re.findall(
        r'"stablehlo\.(?:reduce_scatter|all_reduce)".*?\}\) : \(tensor<([\dx]*)(\w+)>\)', lowered(spec), re.S
    )
    activations = {element for shape, element in sums if shape.count("x") == 3}  # sequences, tokens, width
    assert activations == {{None: "bf16", "float32": "f32", "bfloat16": "bf16"}[dtype]}


@pytest.mark.slow
def test_sums_over_the_tensor_axis_are_as_good_in_either_format():
    alone = run_steps(make_spec(model=SMALL, precision=Precision(compute_dtype="float32")), 3)
    precision = Precision(compute_dtype="float32", tensor_reduce_dtype="bfloat16")
    halved = run_steps(make_spec({"tensor": 2}, model=SMALL, precision=precision), 3)
    np.testing.assert_allclose(alone[0], halved[0], rtol=1e-2)
    assert not np.array_equal(alone[0], halved[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_accumulated_in_their_format(dtype):
    precision = Precision(compute_dtype="float32", gradient_dtype=dtype)
    spec = make_spec(model=SMALL, batch=Batch(sequence_length=32, global_batch_size=16, micro_batch_size=4),
                     precision=precision)  # fmt: skip
    parameters = len(jax.tree.leaves(declare(spec)))
    loops = re.findall(r"stablehlo\.while\(.*?\) : (.*)", lowered(spec))
    assert max(loop.count("xbf16>") for loop in loops) == (parameters if dtype == "bfloat16" else 0)


@pytest.mark.slow
def test_fp8_is_the_same_on_every_mesh_and_for_every_division_of_the_batch():
    """Scales follow from whole tensors: over devices and, as they are delayed, over micro-batches."""
    precision = Precision(compute_dtype="float32", quantization="fp8")
    halves = Batch(sequence_length=32, global_batch_size=16, micro_batch_size=8)
    alone = run_steps(make_spec(model=SMALL, precision=precision, batch=halves), 4)
    spread = run_steps(make_spec(FOUR, model=SMALL, precision=precision), 4)
    np.testing.assert_allclose(alone[0], spread[0], rtol=2e-5)
    np.testing.assert_allclose(alone[1], spread[1], rtol=2e-3)


@pytest.mark.slow
def test_training_in_fp8_stays_near_bfloat16():
    """Over 12 steps the loss falls by more than 0.4, and is never further than 0.02 from that in bfloat16."""
    plain = run_steps(make_spec(model=SMALL, precision=Precision()), 12)[0]
    assert plain[0] - plain[-1] > 0.4
    for name in ("te_fp8_currentscaling", "te_fp8_delayedscaling"):
        losses = run_steps(make_spec(model=SMALL, precision=Precision(quantization=name)), 12)[0]
        assert 0 < np.abs(np.array(losses) - plain).max() < 0.02


@pytest.mark.slow
def test_random_rounding_is_the_same_on_every_mesh():
    """All but the few numbers whose float32 value differs by mesh, as gradients of bfloat16 do, and falls on the other
    side of what was drawn; drawn anew, a third would differ."""
    half = Precision(compute_dtype="float32", params_dtype="bfloat16", optimizer_dtype="bfloat16",
                     stochastic_rounding=True)  # fmt: skip
    alone, *others = (
        jax.tree.leaves(run_steps(make_spec(mesh, model=SMALL, precision=half, **more), 2)[2])
        for mesh, more in (({}, {}), ({"data": 2, "tensor": 2}, {"zero1": True}))
    )
    for other in others:
        for a, b in zip(alone, other, strict=True):
            assert a.dtype == ml_dtypes.bfloat16
            assert (a != b).mean() < 0.1


@pytest.mark.slow
def test_masters_are_rounded_at_random_into_what_is_computed_with():
    masters = Precision(stochastic_rounding=True)
    alone, spread = (run_steps(make_spec(mesh, model=SMALL, precision=masters), 1) for mesh in ({}, {"fsdp": 2}))
    nearest = run_steps(make_spec(model=SMALL, precision=Precision()), 1)
    assert alone[0] == pytest.approx(spread[0], abs=1e-4)
    assert abs(alone[1][0] - nearest[1][0]) > 10 * abs(alone[1][0] - spread[1][0])
    assert {leaf.dtype for leaf in jax.tree.leaves(alone[2])} == {np.dtype("float32")}
