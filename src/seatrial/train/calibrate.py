"""`python -m seatrial.train.calibrate --out FILE`: measures this process's devices by the trainer's own functions.

FILE gets the measurements of `estimate.calibration` as JSON. On one device: matrix products by shape and format, as the
trainer's row for the backend computes them; its attention, forward and backward; a loop over memory; an update of the
optimizer; and steps of small models. On several devices (`--cpu-devices`, or the GPUs that there are): collectives, and
steps over meshes of them; of virtual devices, which share a processor, some operators on all of them at once. Several
processes (`--processes`) measure collectives and steps between them. Started by name; nothing imports this but tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.estimate.time_profile import HEAD
from seatrial.estimate.time_work import blocks_over_pairs
from seatrial.spec import Batch, Execution, MeshShape, ModelSpec, Parallelism, Precision, RunSpec, Topology, to_dict
from seatrial.xla_flags import settle, settle_share

LEAST_SECONDS, LEAST_RUNS, MOST_RUNS = 0.12, 3, 25
MOST_DRAWN = 1 << 22
FP8 = "te_fp8_currentscaling"
STEP_RUNS = 5
RUNS_TOGETHER = 7  # of processes, which must all do the same

# Tokens, inputs and outputs: of the layers of small and of large models, of output heads, and few tokens.
CPU_SHAPES = (
    (256, 256, 256), (1024, 256, 704), (2048, 192, 512), (512, 512, 512), (512, 1408, 512), (1024, 512, 1408),
    (256, 1024, 2816), (128, 768, 768),
)  # fmt: skip
# Of output heads, as many tokens as a chunk of them has: wide ones are slower than a layer's.
CPU_HEADS = ((512, 256, 4096), (512, 384, 16_384), (256, 512, 8192), (512, 512, 20_000))
CPU_SHAPES_TOGETHER = ((512, 256, 704), (256, 512, 512), (512, 256, 4096))
GPU_SHAPES = (
    (1024, 1024, 1024), (4096, 2048, 2048), (8192, 4096, 4096), (16_384, 4096, 14_336), (2048, 8192, 28_672),
)  # fmt: skip
CPU_ATTENTION = (
    (2, 256, 8, 8, 32), (4, 128, 8, 4, 64), (2, 512, 8, 4, 64), (1, 512, 4, 4, 128), (1, 1024, 8, 8, 64),
)  # fmt: skip
CPU_ATTENTION_TOGETHER = ((2, 256, 4, 4, 64),)
GPU_ATTENTION = ((2, 4096, 32, 8, 128), (1, 8192, 32, 8, 128), (4, 2048, 32, 8, 64), (1, 16_384, 16, 2, 128))
CPU_COLLECTIVES, GPU_COLLECTIVES = (1 << 16, 1 << 22, 1 << 24), (1 << 20, 1 << 24, 1 << 28)
UPDATED = {"cpu": 1 << 23, "gpu": 1 << 28}  # parameters

ALONE: dict[str, int] = {}  # no axis of the mesh


@dataclasses.dataclass(frozen=True)
class Small:
    """A small model's step: what a calibration times as a whole."""

    layers: int
    hidden: int
    ffn: int
    words: int
    length: int
    batch: int
    accumulate: int = 1
    remat: str = "none"
    dtype: Any = "bfloat16"
    kv_share: int = 1
    head_dim: int = 64
    quantization: str | None = None
    scan: bool = True

    def spec(self, within: Mapping[str, int] = ALONE, across: Mapping[str, int] = ALONE) -> RunSpec:
        """On a mesh `within` each process and `across` them, as many sequences on each replica."""
        fast, slow = MeshShape(**within), MeshShape(**across)
        replicas, heads = fast.data * fast.fsdp * slow.data * slow.fsdp, self.hidden // self.head_dim
        model = ModelSpec(
            name="calibration", vocab_size=self.words, hidden_dim=self.hidden, num_layers=self.layers, num_heads=heads,
            num_kv_heads=heads // self.kv_share, head_dim=self.head_dim, ffn_dim=self.ffn,
        )  # fmt: skip
        return RunSpec(
            name="calibration", dialect="native", model=model, steps=10,
            batch=Batch(sequence_length=self.length, micro_batch_size=self.batch,
                        global_batch_size=self.batch * replicas * self.accumulate),
            topology=Topology(num_nodes=slow.product, devices_per_node=fast.product),
            parallelism=Parallelism(within_node=fast, across_nodes=slow),
            precision=Precision(compute_dtype=self.dtype, quantization=self.quantization),
            execution=Execution(remat=self.remat, scan_layers=self.scan),
        )  # fmt: skip


CPU_STEPS = (
    Small(2, 256, 704, 4096, 256, 4),
    Small(3, 512, 1408, 4096, 256, 2, remat="full"),
    Small(2, 256, 704, 16_384, 256, 2, accumulate=2),
    Small(4, 192, 512, 2048, 512, 4),
    Small(2, 768, 2048, 4096, 128, 2),
    Small(2, 256, 704, 4096, 256, 4, dtype="float32"),
    Small(3, 512, 1408, 4096, 256, 2, dtype="float32"),
    Small(4, 192, 512, 2048, 512, 4, dtype="float32", kv_share=3),
    Small(4, 448, 896, 4096, 128, 1, accumulate=4, remat="save_qkv_proj"),
    Small(2, 192, 512, 8192, 128, 2, accumulate=4, head_dim=32),
    Small(6, 256, 896, 24_576, 128, 8),
    Small(4, 256, 704, 16_384, 256, 2, accumulate=4, dtype="float32"),
    Small(6, 320, 640, 2048, 512, 2, dtype="float32", remat="minimal_with_context", head_dim=32),
    Small(2, 640, 1728, 2048, 128, 2, accumulate=2, dtype="float32", remat="full", head_dim=128),
    Small(8, 384, 768, 8192, 256, 2),
    Small(2, 896, 2368, 24_576, 128, 1, dtype="float32"),
)
# Such that a GPU is busy, and that products, attention, loops over memory and the optimizer weigh differently.
GPU_STEP = Small(2, 4096, 14_336, 32_768, 4096, 2, kv_share=4, head_dim=128, scan=False)
GPU_STEPS = (
    GPU_STEP,
    dataclasses.replace(GPU_STEP, quantization=FP8),
    Small(4, 2048, 5632, 32_768, 4096, 4, remat="full"),
    Small(2, 1024, 2816, 131_072, 2048, 2, head_dim=128, scan=False),
    Small(2, 2048, 2048, 4096, 16_384, 1, head_dim=128, scan=False),
)
TOGETHER, TOGETHER_32 = Small(2, 256, 704, 4096, 256, 2), Small(2, 384, 1024, 8192, 256, 1, dtype="float32")
LONGER_32, WIDER = Small(4, 192, 512, 2048, 512, 2, dtype="float32"), Small(2, 256, 704, 16_384, 256, 2)
LARGER = Small(2, 512, 1408, 16_384, 256, 1)
PASSES = Small(2, 640, 1280, 4096, 128, 2, accumulate=2)
SHORT = Small(6, 256, 896, 2048, 256, 1, remat="full")
# Of so many virtual devices: a model, and the axes of the mesh that halve.
STEPS_TOGETHER: dict[int, tuple[tuple[Small, dict[str, int]], ...]] = {
    2: ((TOGETHER, {"data": 2}), (TOGETHER, {"fsdp": 2}), (TOGETHER_32, {"tensor": 2}), (LONGER_32, {"data": 2}),
        (WIDER, {"fsdp": 2}), (PASSES, {"pipeline": 2}), (TOGETHER, {"context": 2}), (PASSES, {"tensor": 2}),
        (LARGER, {"fsdp": 2})),
    4: ((TOGETHER, {"data": 4}), (TOGETHER_32, {"fsdp": 2, "tensor": 2}), (LONGER_32, {"data": 4}),
        (WIDER, {"fsdp": 4}), (SHORT, {"data": 4}), (LARGER, {"fsdp": 2, "tensor": 2})),
}  # fmt: skip


# Of several processes with a device each, with the axes that divide between them; and with two each.
STEPS_APART = ((TOGETHER, "data"), (TOGETHER_32, "fsdp"), (LARGER, "data"))
STEPS_OF_TWO_EACH = (
    (TOGETHER, {"tensor": 2}), (TOGETHER_32, {"tensor": 2}), (PASSES, {"tensor": 2}), (LONGER_32, {"data": 2}),
)  # fmt: skip


def seconds_of(function: Callable[..., Any], *arguments: Any, options: dict[str, Any] | None = None) -> float:
    """The time of a call whose results are waited for, once it is compiled and warm: see `undisturbed`."""
    import jax

    compiled = jax.jit(function).lower(*arguments).compile(options)
    jax.block_until_ready(compiled(*arguments))
    times: list[float] = []
    most = RUNS_TOGETHER if jax.process_count() > 1 else MOST_RUNS
    least = RUNS_TOGETHER if jax.process_count() > 1 else LEAST_RUNS
    while len(times) < least or (sum(times) < LEAST_SECONDS and len(times) < most):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - begin)
    return undisturbed(times)


def undisturbed(times: Sequence[float]) -> float:
    """The mean of the faster half: what else the machine does only ever adds."""
    return statistics.fmean(sorted(times)[: (len(times) + 1) // 2])


def on_all(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function of arrays that each device of this process computes for itself, and its arguments on all of them."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = jax.local_devices()
    if len(devices) == 1:
        return function, arguments
    mesh, everywhere = Mesh(np.asarray(devices), ("all",)), PartitionSpec()
    spread = jax.shard_map(
        function, mesh=mesh, in_specs=everywhere, out_specs=PartitionSpec("all"), check_vma=False
    )  # fmt: skip
    return spread, tuple(jax.device_put(each, NamedSharding(mesh, everywhere)) for each in arguments)


def _random(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    """Random numbers, which repeat after some millions: the host would take minutes for the gigabytes of a GPU."""
    import jax.numpy as jnp
    import numpy as np

    drawn = np.random.default_rng(seed).standard_normal(min(math.prod(shape), MOST_DRAWN), np.float32)
    return jnp.asarray(np.resize(drawn.astype(dtype), shape))  # nothing to compile


# Kind → the operands of a product as the trainer's row takes them, and its dimensions: all three are those of one map,
# with [m, k] hidden states and [k, n] weights.
Operands = tuple[tuple[int, int], tuple[int, int], tuple[int, int, int]]
KINDS: dict[str, Callable[[int, int, int], Operands]] = {
    "forward": lambda m, k, n: ((m, k), (k, n), (m, k, n)),
    "input_gradient": lambda m, k, n: ((m, n), (k, n), (m, n, k)),
    "weight_gradient": lambda m, k, n: ((m, k), (m, n), (k, m, n)),
}


def measure_products(backend: str, on_cpu: bool) -> Iterator[dict[str, Any]]:
    """Each product of a linear layer in each format; small ones several times in a loop, as layers come."""
    import jax

    from seatrial.train.mesh import has_fp8_units
    from seatrial.train.precision import products_for

    row, alone = products_for(backend), jax.local_device_count() == 1
    if on_cpu:
        formats: tuple[str, ...] = ("bfloat16", "float32")
        shapes = [*(CPU_SHAPES if alone else ()), *CPU_SHAPES_TOGETHER]
        heads = CPU_HEADS if alone else ()
    else:
        formats = ("bfloat16", "fp8") if has_fp8_units(jax.devices()[0]) else ("bfloat16",)
        shapes, heads = [*GPU_SHAPES], ()
    for name in formats:
        for where, sizes in (("", shapes), (HEAD, heads)):
            for m, k, n in sizes:
                for kind, operands in KINDS.items():
                    left, right, of = operands(m, k, n)
                    seconds = _product_seconds(
                        getattr(row, kind), name, left, right, flops=2 * m * k * n, on_cpu=on_cpu
                    )
                    found = dict(zip("mkn", of, strict=True))
                    yield {"number_format": name, "kind": where + kind, **found, "seconds": seconds}


def _product_seconds(
    product: Callable[..., Any], name: str, left: tuple[int, int], right: tuple[int, int], *, flops: float, on_cpu: bool
) -> float:
    """Of one of several in a loop, with operands of these shapes in a format."""
    from jax import lax

    from seatrial.train.fp8 import OPTIONS, RECIPES
    from seatrial.train.precision import DTYPES

    is_fp8, given = name == "fp8", DTYPES.get(name, DTYPES["bfloat16"])
    stored = RECIPES["current"].operands if is_fp8 else given
    times = max(1, min(16, int((1e9 if on_cpu else 1e11) / flops)))
    operands = _random((times, *left), stored), _random(right, stored, 1)

    def each_of(w: Any, x: Any) -> Any:
        return product(x.astype(given), w.astype(given))

    def looped(xs: Any, w: Any) -> Any:
        return lax.map(partial(each_of, w), xs)

    on, operands = on_all(looped, *operands) if on_cpu else (looped, operands)
    return seconds_of(on, *operands, options=OPTIONS if is_fp8 else None) / times


def measure_attention(backend: str, on_cpu: bool) -> Iterator[dict[str, Any]]:
    """The trainer's attention, causal; the backward pass alone is the gradient's time less the forward pass's."""
    import jax

    from seatrial.train.attention import ATTENTION
    from seatrial.train.masks import Mask, Pattern
    from seatrial.train.precision import DTYPES

    rows = {"cuda": "cudnn"}
    row = ATTENTION[rows.get(backend, "blocks")]
    of_cpu = CPU_ATTENTION + CPU_ATTENTION_TOGETHER if jax.local_device_count() == 1 else CPU_ATTENTION_TOGETHER
    for name in ("bfloat16", "float32") if on_cpu else ("bfloat16",):
        for B, T, H, G, K in of_cpu if on_cpu else GPU_ATTENTION:
            q, k, v = (_random((B, T, heads, K), DTYPES[name], seed) for seed, heads in enumerate((H, G, G)))

            def attend(q: Any, k: Any, v: Any) -> Any:
                return row(q, k, v, Mask(segments_BT=None, segments_BS=None), Pattern(window=None, dropout=0.0))

            def gradient(q: Any, k: Any, v: Any) -> Any:
                context, back = jax.vjp(attend, q, k, v)
                return back(context)

            on, operands = on_all(attend, q, k, v) if on_cpu else (attend, (q, k, v))
            back_on, _ = on_all(gradient, q, k, v) if on_cpu else (gradient, ())
            forward, both = seconds_of(on, *operands), seconds_of(back_on, *operands)
            flops = 4.0 * B * T * H * K * T / 2 * (blocks_over_pairs(T) if on_cpu else 1.0)
            for kind, of, seconds in (("forward", flops, forward), ("backward", 2.5 * flops, both - forward)):
                if seconds > 0:
                    yield {"number_format": name, "kind": kind, "head_dim": K, "flops": of, "seconds": seconds}


def measure_memory(on_cpu: bool) -> dict[str, float]:
    """Bytes per second of a loop that reads two arrays and writes one, and of an update of Adam."""
    import jax.numpy as jnp

    from seatrial.spec import Optimizer
    from seatrial.train.optimizer import Now, Tensor, apart_on, make_optimizer

    number = UPDATED["cpu" if on_cpu else "gpu"]
    a, b = (_random((number,), jnp.float32, seed) for seed in (0, 1))
    on, operands = on_all(lambda a, b: a + 2 * b, a, b) if on_cpu else (lambda a, b: a + 2 * b, (a, b))
    added = seconds_of(on, *operands)
    settings = Optimizer()
    row = make_optimizer(settings)
    shape = (number // 1024, 1024)
    p, g, *slots = (_random(shape, jnp.float32, seed) for seed in range(2 + len(row.slots)))

    def update(p: Any, g: Any, *slots: Any) -> Any:
        now = Now(step=jnp.int32(1), rate=jnp.float32(1e-4), decay=0.1, apart=apart_on("cpu" if on_cpu else "gpu"),
                  tensor=Tensor(shape=shape, split=((), ()), dims=()))  # fmt: skip
        return row.update(p, g, dict(zip(row.slots, slots, strict=True)), now, settings)

    given = (p, g, *(abs(slot) for slot in slots))
    on, operands = on_all(update, *given) if on_cpu else (update, given)
    updated = seconds_of(on, *operands)
    return {
        "memory_bytes_per_second": 12.0 * number / added,
        "optimizer_bytes_per_second": 28.0 * number / updated,
    }


def measure_collectives(on_cpu: bool) -> Iterator[dict[str, Any]]:
    """All-reduce, all-gather and reduce-scatter over all devices, by size."""
    import jax
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = jax.devices()
    mesh = Mesh(np.asarray(devices), ("all",))
    parts, whole = PartitionSpec("all"), PartitionSpec()
    kinds: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
        "all-reduce": (lambda x: lax.psum(x, "all"), whole, whole),
        "all-gather": (lambda x: lax.all_gather(x, "all", tiled=True), parts, whole),
        "reduce-scatter": (lambda x: lax.psum_scatter(x, "all", tiled=True), whole, parts),
    }
    for size in CPU_COLLECTIVES if on_cpu else GPU_COLLECTIVES:
        for kind, (function, before, after) in kinds.items():
            x = jax.device_put(np.ones(size // 4, np.float32), NamedSharding(mesh, before))
            spread = jax.shard_map(function, mesh=mesh, in_specs=before, out_specs=after, check_vma=False)
            seconds = seconds_of(spread, x)
            yield {"kind": kind, "devices": len(devices), "processes": jax.process_count(),
                   "total_bytes": float(size), "seconds": seconds}  # fmt: skip


def step_seconds(spec: RunSpec, *, runs: int = STEP_RUNS) -> float:
    """The time of a training step of a run, compiled and warm, on the devices of this process: see `undisturbed`."""
    import jax
    import numpy as np

    from seatrial.train.data.examples import FIELDS
    from seatrial.train.mesh import make_mesh
    from seatrial.train.trainer import make_trainer

    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
    dice = np.random.default_rng(0)
    batch = {}
    for name, place in trainer.batch_shardings.items():
        values = np.ones(trainer.batch_shape, FIELDS[name])
        if name in ("tokens", "targets"):
            values = dice.integers(0, spec.model.vocab_size, trainer.batch_shape).astype(FIELDS[name])
        batch[name] = jax.device_put(values, place)
    state = jax.block_until_ready(trainer.init())
    times = []
    for _ in range(runs + 2):
        begin = time.perf_counter()
        state, numbers = trainer.step(state, batch)
        jax.block_until_ready(numbers["loss"])
        times.append(time.perf_counter() - begin)
    return undisturbed(times[2:])


def measure_steps(devices: int, backend: str) -> Iterator[dict[str, Any]]:
    """Steps of small models: on one device of several kinds, on several over some meshes."""
    import jax

    from seatrial.train.mesh import has_fp8_units

    processes = jax.process_count()
    if devices == 1 and backend == "cpu":
        specs = [small.spec() for small in CPU_STEPS]
    elif devices == 1:
        has_fp8 = has_fp8_units(jax.devices()[0])
        specs = [small.spec() for small in GPU_STEPS if has_fp8 or not small.quantization]
    elif backend != "cpu":
        specs = [GPU_STEP.spec({axis: devices}) for axis in ("data", "fsdp", "tensor")]
    elif devices == processes:
        specs = [small.spec(across={axis: processes}) for small, axis in STEPS_APART]
    elif processes > 1:
        specs = [small.spec(mesh, {"data": processes}) for small, mesh in STEPS_OF_TWO_EACH]
    else:
        specs = [small.spec(mesh) for small, mesh in STEPS_TOGETHER.get(devices, ())]
    for spec in specs:
        yield {"spec": to_dict(spec), "seconds": step_seconds(spec)}


def measure() -> dict[str, Any]:
    """All measurements of this process's devices, as plain data."""
    import jax
    import jaxlib.version

    from seatrial.train.mesh import backend_of

    devices = jax.devices()
    backend = backend_of(devices[0])
    on_cpu = backend == "cpu"
    found: dict[str, Any] = {
        "device": devices[0].device_kind,
        "backend": backend,
        "devices": len(devices),
        "processes": jax.process_count(),
        "versions": {"jax": jax.__version__, "jaxlib": jaxlib.version.__version__},
    }
    if len(devices) > 1 and 1 in (jax.local_device_count(), jax.process_count()):
        found["collectives"] = list(measure_collectives(on_cpu))
    if jax.process_count() == 1:
        found["products"] = list(measure_products(backend, on_cpu))
        found["attention"] = list(measure_attention(backend, on_cpu))
        found |= measure_memory(on_cpu)
    found["steps"] = [each for n in sorted({1, len(devices)} if not on_cpu else {len(devices)})
                      for each in measure_steps(n, backend)]  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m seatrial.train.calibrate", description="Measures devices.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cpu-devices", type=int)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--coordinator")
    given = parser.parse_args()
    settle(cpu_devices=given.cpu_devices)
    settle_share()
    from seatrial.train.startup import join, use_cpu  # late: JAX reads the flags when it is loaded

    if given.cpu_devices:
        use_cpu(given.cpu_devices, given.processes)
    if given.processes > 1:
        join(given.coordinator, given.processes, given.process)
    found = measure()
    if given.process == 0:
        given.out.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
