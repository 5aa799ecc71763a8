"""Measurements of a device that is made up, random each time → a profile that predicts what it was not told."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from dataclasses import replace

import pytest

from seatrial.estimate import hardware, time_profile
from seatrial.estimate.calibration import (
    MeasuredAttention,
    MeasuredCollective,
    MeasuredProduct,
    MeasuredStep,
    Measurements,
    completed,
    profile_of,
)
from seatrial.estimate.time_model import (
    ATTENTION,
    LAUNCHES,
    MATRIX,
    MOVED,
    OPTIMIZER,
    collective_seconds,
    predict,
)
from seatrial.estimate.time_profile import Link, Profile, Rate
from seatrial.estimate.time_work import Collective
from seatrial.spec import Batch, Execution, MeshShape, ModelSpec, Parallelism, Precision, RunSpec, Topology
from seatrial.spec.presets import MODELS
from seatrial.train.calibrate import GPU_SHAPES, GPU_STEPS

KINDS = ("forward", "input_gradient", "weight_gradient")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter")  # as many as `seatrial calibrate` measures


def run(dice: random.Random, dtype: str, processes: int = 1, **mesh: int) -> RunSpec:
    shape, alone = MeshShape(**mesh), MeshShape()
    within, across = (shape, alone) if processes == 1 else (alone, shape)
    hidden = 64 * dice.choice((4, 8, 12))
    model = ModelSpec(
        name="made-up", vocab_size=dice.choice((4096, 8192, 16_384)), hidden_dim=hidden,
        num_layers=dice.choice((2, 4)), num_heads=hidden // 64, num_kv_heads=hidden // 64, head_dim=64,
        ffn_dim=dice.choice((2, 3)) * hidden,
    )  # fmt: skip
    micro, accumulate = dice.choice((1, 2, 4)), dice.choice((1, 2, 4))
    return RunSpec(
        name="made-up", dialect="native", model=model, steps=10,
        batch=Batch(sequence_length=dice.choice((128, 256, 512)), micro_batch_size=micro,
                    global_batch_size=micro * accumulate * shape.data * shape.fsdp),
        topology=Topology(num_nodes=processes, devices_per_node=within.product),
        parallelism=Parallelism(within_node=within, across_nodes=across),
        precision=Precision(compute_dtype=dtype),  # type: ignore[arg-type]
        execution=Execution(remat=dice.choice(("none", "full"))),
    )  # fmt: skip


def two_each(dice: random.Random) -> RunSpec:
    """In two processes with two devices each."""
    fast, spec = MeshShape(tensor=2), run(dice, "bfloat16", 2, data=2)
    topology, parallelism = replace(spec.topology, devices_per_node=2), replace(spec.parallelism, within_node=fast)
    return replace(spec, topology=topology, parallelism=parallelism)


def device(dice: random.Random) -> Profile:
    def rate(of: float) -> Rate:
        small = {name: dice.uniform(4, 60) for name in "mkn"}
        return Rate(flops_per_second=of * dice.uniform(0.7, 1.3), **small)

    products = {f"{name}/{kind}": rate(of) for name, of in (("bfloat16", 9e11), ("float32", 4e11)) for kind in KINDS}
    attention = {
        f"{name}/{kind}": Rate(flops_per_second=dice.uniform(1e11, 3e11), k=dice.uniform(5, 90))
        for name in ("bfloat16", "float32")
        for kind in ("forward", "backward")
    }
    memory = dice.uniform(1e10, 4e10)
    link = Link(bytes_per_second=dice.uniform(2e9, 2e10), latency_seconds=dice.uniform(1e-5, 2e-4))
    shared = {
        part: {1: 1.0, 2: dice.uniform(1.0, 2.1), 4: dice.uniform(2.2, 4.2)}
        for part in (MATRIX, ATTENTION, MOVED, OPTIMIZER, LAUNCHES)
    }
    return Profile(
        device="made-up", origin="here", products=products, attention=attention, memory_bytes_per_second=memory,
        moved=dict.fromkeys(("bfloat16", "float32"), memory * dice.uniform(0.3, 1)),
        optimizer_bytes_per_second=memory * dice.uniform(0.6, 1.1), fast=link, slow=link, domain=0,
        launch_seconds=dice.uniform(1e-6, 2e-5), shared=shared, host=True,
        apart={1: dice.uniform(0.9, 1.2), 2: dice.uniform(1.3, 2.0)},
    )  # fmt: skip


def seconds(spec: RunSpec, profile: Profile) -> float:
    found = predict(spec, "native", profile)
    assert found is not None
    return found.step_seconds


def measurements(dice: random.Random, real: Profile, noise: float) -> Measurements:
    def seen(value: float) -> float:
        return value * (1 + dice.uniform(-noise, noise))

    shapes = [(dice.choice((256, 1024, 2048)), dice.choice((256, 512, 1024)), dice.choice((256, 1408, 8192)))
              for _ in range(8)]  # fmt: skip
    formats = ("bfloat16", "float32")
    return Measurements(
        products=tuple(
            MeasuredProduct(number_format=name, kind=kind, m=m, k=k, n=n,
                            seconds=seen(real.products[f"{name}/{kind}"].seconds(m, k, n)
                                         * real.slowdown(MATRIX, devices)), devices=devices)
            for devices in (1, 2, 4) for name in formats for kind in KINDS for m, k, n in shapes
        ),
        attention=tuple(
            MeasuredAttention(number_format=name, kind=kind, head_dim=K, flops=1e9, seconds=seen(
                1e9 * (1 + real.attention[f"{name}/{kind}"].k / K) / real.attention[f"{name}/{kind}"].flops_per_second
                * real.slowdown(ATTENTION, devices)), devices=devices)
            for devices in (1, 2, 4) for name in formats for kind in ("forward", "backward") for K in (32, 64, 128)
        ),
        collectives=tuple(
            MeasuredCollective(kind=kind, devices=n, total_bytes=size, seconds=seen(collective_seconds(
                Collective(axis="data", kind=kind, total_bytes=size, times=1),
                run(dice, "bfloat16", processes, data=n), real)), processes=processes)
            for n, processes in ((2, 1), (4, 1), (2, 2)) for kind in COLLECTIVES for size in (1e5, 4e6, 2e7)
        ),
        steps=tuple(
            MeasuredStep(spec=spec, seconds=seen(seconds(spec, real)))
            for spec in (
                *(run(dice, dtype) for dtype in formats for _ in range(4)),
                *(run(dice, "bfloat16", **{axis: n}) for n in (2, 4) for axis in ("data", "fsdp")),
                *(run(dice, "bfloat16", 2, **{axis: 2}) for axis in ("data", "fsdp")),
                *(two_each(dice) for _ in range(3)),
            )
        ),
        memory_bytes_per_second=real.memory_bytes_per_second,
        optimizer_bytes_per_second=seen(real.optimizer_bytes_per_second),
        together={n: {MOVED: real.memory_bytes_per_second / real.slowdown(MOVED, n),
                      OPTIMIZER: real.optimizer_bytes_per_second / real.slowdown(OPTIMIZER, n)} for n in (1, 2, 4)},
        host=True,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_steps_that_were_not_measured_are_predicted(seed: int) -> None:
    dice = random.Random(seed)
    real = device(dice)
    found = profile_of(measurements(dice, real, noise=0.02), device="made-up", origin="here", facts={})
    off = [
        seconds(spec, found) / seconds(spec, real) - 1
        for spec in (run(dice, dice.choice(("bfloat16", "float32"))) for _ in range(40))
    ]
    assert statistics.median(map(abs, off)) < 0.04
    assert sum(abs(each) <= 0.10 for each in off) >= 36
    for processes, sizes in ((1, (2, 4)), (2, (2,))):
        meshes = [{dice.choice(("data", "fsdp")): dice.choice(sizes)} for _ in range(40)]
        specs = [run(dice, "bfloat16", processes, **mesh) for mesh in meshes]
        together = [seconds(spec, found) / seconds(spec, real) - 1 for spec in specs]
        assert statistics.median(map(abs, together)) < 0.10
    apart = [seconds(spec, found) / seconds(spec, real) - 1 for spec in (two_each(dice) for _ in range(40))]
    assert statistics.median(map(abs, apart)) < 0.10


@pytest.mark.parametrize("seed", range(6))
def test_a_collective_that_waits_for_a_timer_leaves_the_link_as_it_is(seed: int) -> None:
    """Gloo's all-gather of a few MiB took 0.3 s between two processes on one host, others a hundredth of that."""
    dice = random.Random(seed)
    real = device(dice)
    whole = measurements(dice, real, noise=0.02)
    late = dice.choice([n for n, each in enumerate(whole.collectives) if each.processes > 1])
    collectives = tuple(
        replace(each, seconds=each.seconds * 100) if n == late else each for n, each in enumerate(whole.collectives)
    )
    found = profile_of(replace(whole, collectives=collectives), device="made-up", origin="here", facts={})
    assert found.slow.bytes_per_second == pytest.approx(real.slow.bytes_per_second, rel=0.1)
    specs = [run(dice, "bfloat16", 2, data=2) for _ in range(40)]
    off = [seconds(spec, found) / seconds(spec, real) - 1 for spec in specs]
    assert statistics.median(map(abs, off)) < 0.10


@pytest.mark.parametrize("seed", range(4))
def test_a_gpu_s_steps_in_both_formats_are_predicted(seed: int) -> None:
    """Those of 8B, with 4 to 32 layers, from small ones of `seatrial calibrate`."""
    dice = random.Random(seed)
    published = time_profile.published(hardware.DEVICES["h200"])
    assert published is not None

    def slower(rates: Mapping[str, Rate]) -> dict[str, Rate]:
        return {
            f"{name}/{kind}": replace(rate, flops_per_second=rate.flops_per_second * dice.uniform(0.8, 1.1))
            for name, rate in rates.items() for kind in KINDS
        }  # fmt: skip

    real = replace(
        published, products=slower({name: published.products[name] for name in ("bfloat16", "fp8")}),
        moved=dict.fromkeys(("bfloat16",), published.memory_bytes_per_second * dice.uniform(0.5, 1)),
        optimizer_bytes_per_second=published.optimizer_bytes_per_second * dice.uniform(0.8, 1.1),
    )  # fmt: skip
    measured = Measurements(
        products=tuple(
            MeasuredProduct(number_format=name, kind=kind, m=m, k=k, n=n,
                            seconds=real.products[f"{name}/{kind}"].seconds(m, k, n) * dice.uniform(0.98, 1.02))
            for name in ("bfloat16", "fp8") for kind in KINDS for m, k, n in GPU_SHAPES
        ),
        attention=tuple(
            MeasuredAttention(number_format="bfloat16", kind=kind, head_dim=K, flops=1e12,
                              seconds=1e12 * (1 + rate.k / K) / rate.flops_per_second)
            for kind in ("forward", "backward") for K in (64, 128)
            if (rate := real.attention_rate("bfloat16", kind))
        ),
        collectives=(),
        steps=tuple(MeasuredStep(spec=each.spec(), seconds=seconds(each.spec(), real) * dice.uniform(0.98, 1.02))
                    for each in GPU_STEPS),
        memory_bytes_per_second=real.memory_bytes_per_second,
        optimizer_bytes_per_second=real.optimizer_bytes_per_second,
    )  # fmt: skip
    found = completed(profile_of(measured, device="h200", origin="here", facts={}), published, several=False)
    for layers in (4, 16, 32):
        for quantization in (None, "te_fp8_currentscaling"):
            batch = Batch(sequence_length=8192, micro_batch_size=2, global_batch_size=2)
            spec = replace(
                run(dice, "bfloat16"), model=replace(MODELS["llama3.1-8b"], num_layers=layers), batch=batch,
                precision=Precision(quantization=quantization), execution=Execution(remat="full"),
            )  # fmt: skip
            assert seconds(spec, found) == pytest.approx(seconds(spec, real), rel=0.06)
    assert (found.low, found.high) == (published.low, published.high)


def test_what_one_machine_cannot_show_is_published() -> None:
    dice = random.Random(2)
    real, published = device(dice), time_profile.published(hardware.DEVICES["h100-sxm"])
    assert published is not None
    alone = completed(real, published, several=False)
    assert (alone.fast, alone.slow, alone.domain, alone.shared) == (published.fast, published.slow, 8, {})
    assert alone.products["fp8"] == published.products["fp8"]
    assert alone.product("bfloat16", "forward") == real.products["bfloat16/forward"]
    assert completed(real, published, several=True).fast == real.fast
    assert completed(real, None, several=True) == replace(real, shared={})


def test_without_measurements_there_is_no_profile() -> None:
    dice = random.Random(1)
    whole = measurements(dice, device(dice), noise=0.0)
    for missing in ("products", "attention", "steps"):
        with pytest.raises(ValueError, match="nothing was measured"):
            profile_of(replace(whole, **{missing: ()}), device="x", origin="x", facts={})
