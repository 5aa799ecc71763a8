"""`python -m seatrial.train.calibrate --out FILE`: measures this process's devices by the trainer's own functions.

FILE gets the measurements of `estimate.calibration` as JSON. On one device: matrix products by shape and format, as the
trainer's row for the backend computes them; its attention, forward and backward; a copy; an update of the optimizer;
and steps of small models. On several devices (`--cpu-devices`, or the GPUs that there are): collectives, and steps over
meshes of them. Started by name; nothing imports this but tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from seatrial.spec import Batch, Execution, MeshShape, ModelSpec, Parallelism, Precision, RunSpec, Topology, to_dict
from seatrial.xla_flags import settle, settle_share

LEAST_SECONDS, LEAST_RUNS, MOST_RUNS = 0.12, 3, 25
STEP_RUNS = 5

# Tokens, inputs and outputs: of the layers of small and of large models, of output heads, and few tokens.
CPU_SHAPES = (
    (256, 256, 256), (1024, 256, 1024), (2048, 512, 1408), (512, 1024, 1024), (512, 512, 8192), (1024, 1408, 512),
)  # fmt: skip
GPU_SHAPES = (
    (1024, 1024, 1024), (4096, 2048, 2048), (8192, 4096, 4096), (8192, 4096, 14_336), (8192, 14_336, 4096),
    (8192, 8192, 8192), (2048, 4096, 128_256), (1024, 8192, 28_672),
)  # fmt: skip
CPU_ATTENTION = ((2, 256, 8, 8, 32), (2, 512, 8, 4, 64), (1, 512, 4, 4, 128), (1, 1024, 8, 8, 64))
GPU_ATTENTION = ((2, 4096, 32, 8, 128), (1, 8192, 32, 8, 128), (4, 2048, 32, 8, 64), (1, 16_384, 16, 2, 128))
CPU_COLLECTIVES, GPU_COLLECTIVES = (1 << 16, 1 << 22), (1 << 20, 1 << 24, 1 << 28)
UPDATED = {"cpu": 1 << 23, "gpu": 1 << 28}  # parameters


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

    def spec(self, **mesh: int) -> RunSpec:
        """On a mesh, as many sequences on each replica."""
        shape = MeshShape(**mesh)
        replicas, heads = shape.data * shape.fsdp, self.hidden // 64
        model = ModelSpec(
            name="calibration", vocab_size=self.words, hidden_dim=self.hidden, num_layers=self.layers, num_heads=heads,
            num_kv_heads=heads // self.kv_share, head_dim=64, ffn_dim=self.ffn,
        )  # fmt: skip
        return RunSpec(
            name="calibration", dialect="native", model=model, steps=10,
            batch=Batch(sequence_length=self.length, micro_batch_size=self.batch,
                        global_batch_size=self.batch * replicas * self.accumulate),
            topology=Topology(devices_per_node=shape.product), parallelism=Parallelism(within_node=shape),
            precision=Precision(compute_dtype=self.dtype), execution=Execution(remat=self.remat),
        )  # fmt: skip


STEPS = (
    Small(2, 256, 704, 4096, 256, 4),
    Small(4, 512, 1408, 8192, 256, 2),
    Small(2, 512, 1408, 4096, 512, 2, remat="full"),
    Small(2, 256, 704, 16_384, 256, 2, accumulate=2),
    Small(2, 256, 704, 4096, 256, 4, dtype="float32"),
    Small(3, 512, 1408, 8192, 256, 2, dtype="float32", remat="full"),
    Small(2, 512, 1408, 4096, 256, 2, dtype="float32", accumulate=2),
)
STEPS_TOGETHER = (Small(2, 256, 704, 4096, 256, 2), Small(2, 256, 704, 4096, 256, 2, dtype="float32"))


def seconds_of(function: Callable[..., Any], *arguments: Any) -> float:
    """The time of a call whose results are waited for, once it is compiled and warm: see `undisturbed`."""
    import jax

    compiled = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(compiled(*arguments))
    times: list[float] = []
    while len(times) < LEAST_RUNS or (sum(times) < LEAST_SECONDS and len(times) < MOST_RUNS):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - begin)
    return undisturbed(times)


def undisturbed(times: Sequence[float]) -> float:
    """The mean of the faster half: what else the machine does only ever adds."""
    return statistics.fmean(sorted(times)[: (len(times) + 1) // 2])


def _random(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    import jax

    return jax.random.normal(jax.random.key(seed), shape, "float32").astype(dtype)


def measure_products(backend: str, on_cpu: bool) -> Iterator[dict[str, Any]]:
    """Each product of a linear layer in each format; small ones several times in a loop, as layers come."""
    from jax import lax

    from seatrial.train.precision import DTYPES, products_for

    row = products_for(backend)
    formats = ("bfloat16", "float32") if on_cpu else ("bfloat16",)
    for name in formats:
        for m, k, n in CPU_SHAPES if on_cpu else GPU_SHAPES:
            times = max(1, min(16, int((1e9 if on_cpu else 1e11) / (2 * m * k * n))))
            for kind, left, right, of in (
                ("forward", (m, k), (k, n), (m, k, n)),
                ("input_gradient", (m, k), (n, k), (m, k, n)),
                ("weight_gradient", (k, m), (k, n), (m, k, n)),
            ):
                product = getattr(row, kind)
                xs, w = _random((times, *left), DTYPES[name]), _random(right, DTYPES[name], 1)

                def looped(xs: Any, w: Any, product: Any = product) -> Any:
                    return lax.map(lambda x: product(x, w), xs)

                each = seconds_of(looped, xs, w) / times
                yield {"number_format": name, "kind": kind, **dict(zip("mkn", of, strict=True)), "seconds": each}


def measure_attention(backend: str, on_cpu: bool) -> Iterator[dict[str, Any]]:
    """The trainer's attention, causal; the backward pass alone is the gradient's time less the forward pass's."""
    import jax

    from seatrial.train.attention import ATTENTION
    from seatrial.train.masks import Mask, Pattern
    from seatrial.train.precision import DTYPES

    rows = {"cuda": "cudnn"}
    row = ATTENTION[rows.get(backend, "blocks")]
    for name in ("bfloat16", "float32") if on_cpu else ("bfloat16",):
        for B, T, H, G, K in CPU_ATTENTION if on_cpu else GPU_ATTENTION:
            q, k, v = (_random((B, T, heads, K), DTYPES[name], seed) for seed, heads in enumerate((H, G, G)))

            def attend(q: Any, k: Any, v: Any) -> Any:
                return row(q, k, v, Mask(segments_BT=None, segments_BS=None), Pattern(window=None, dropout=0.0))

            def gradient(q: Any, k: Any, v: Any) -> Any:
                context, back = jax.vjp(attend, q, k, v)
                return back(context)

            forward, both = seconds_of(attend, q, k, v), seconds_of(gradient, q, k, v)
            flops = 4.0 * B * T * H * K * T / 2
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
    added = seconds_of(lambda a, b: a + 2 * b, a, b)
    settings = Optimizer()
    row = make_optimizer(settings)
    shape = (number // 1024, 1024)
    p, g, *slots = (_random(shape, jnp.float32, seed) for seed in range(2 + len(row.slots)))

    def update(p: Any, g: Any, *slots: Any) -> Any:
        now = Now(step=jnp.int32(1), rate=jnp.float32(1e-4), decay=0.1, apart=apart_on("cpu" if on_cpu else "gpu"),
                  tensor=Tensor(shape=shape, split=((), ()), dims=()))  # fmt: skip
        return row.update(p, g, dict(zip(row.slots, slots, strict=True)), now, settings)

    updated = seconds_of(update, p, g, *(abs(slot) for slot in slots))
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
            yield {"kind": kind, "devices": len(devices), "total_bytes": float(size), "seconds": seconds}


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


def measure_steps(devices: int) -> Iterator[dict[str, Any]]:
    """Steps of small models: on one device of several kinds, on several by data and by fsdp."""
    if devices == 1:
        specs = [small.spec() for small in STEPS]
    else:
        specs = [small.spec(**{axis: devices}) for small, axis in zip(STEPS_TOGETHER, ("data", "fsdp"), strict=True)]
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
        "versions": {"jax": jax.__version__, "jaxlib": jaxlib.version.__version__},
    }
    if len(devices) > 1:
        found["collectives"] = list(measure_collectives(on_cpu))
    if len(devices) == 1 or not on_cpu:
        found["products"] = list(measure_products(backend, on_cpu))
        found["attention"] = list(measure_attention(backend, on_cpu))
        found |= measure_memory(on_cpu)
    found["steps"] = [each for n in sorted({1, len(devices)} if not on_cpu else {len(devices)})
                      for each in measure_steps(n)]  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m seatrial.train.calibrate", description="Measures devices.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cpu-devices", type=int)
    given = parser.parse_args()
    settle(cpu_devices=given.cpu_devices)
    settle_share()
    import jax  # late: it reads the flags when it is loaded

    if given.cpu_devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", given.cpu_devices)
    given.out.write_text(json.dumps(measure()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
