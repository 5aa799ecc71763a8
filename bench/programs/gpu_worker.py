"""The JAX side of `bench/gpu_train.py`, one task a process; prints JSON objects, one a line.

    python gpu_worker.py [--cpu] peak                  the device, and what its matrix products reach by format
    python gpu_worker.py [--cpu] compare               loss curves there beside the CPU's, from the same parameters
    python gpu_worker.py [--cpu] step SPEC --steps N   steps of the run whose spec is in a file: memory, times, kernels

With `--cpu` a second device of the CPU takes the accelerator's place, and sizes are small.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from seatrial.spec import Batch, Data, Execution, ModelSpec, Optimizer, Precision, RunSpec, from_dict
from seatrial.xla_flags import settle, settle_share

Formats = dict[str, tuple[Precision, float]]
FORMATS: Formats = {  # → how far the loss on the device may be from that on the CPU
    "float32": (Precision(compute_dtype="float32"), 2e-3),  # products may be in TF32
    "bfloat16": (Precision(), 1e-2),
    "fp8 current": (Precision(quantization="te_fp8_currentscaling"), 2e-2),
    "fp8 delayed": (Precision(quantization="fp8"), 2e-2),
}
ON_CPU = ("bfloat16", "fp8 current")
COMPARED = ModelSpec(  # heads of 128, as cuDNN's attention likes them
    name="compared", vocab_size=1024, hidden_dim=256, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=128,
    ffn_dim=512,
)  # fmt: skip
COMPARED_STEPS, LEAST_FALL = 10, 0.1
WARM_UP = 3
# What a profiler calls a kernel → its kind, by the first pattern that fits; the rest is bound by memory.
KINDS = (
    ("attention", re.compile(r"fmha|flash|sdpa|dot_product_attention", re.I)),
    ("communication", re.compile(r"nccl|rccl|all-gather|all-reduce|reduce-scatter|all-to-all|permute", re.I)),
    ("matrix products", re.compile(r"gemm|nvjet|cublas|cutlass|xmma|matmul|ynn|^dot", re.I)),
)
OTHERS = "memory-bound"


def say(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


# --- the device -------------------------------------------------------------------------------------------------------


def peak(on_cpu: bool) -> None:
    """FLOP/s of a large product in each format that the trainer uses; the best of ten."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from seatrial.train.mesh import backend_of

    device = jax.devices()[-1]
    size = 1024 if on_cpu else 8192
    formats = {"bfloat16": jnp.bfloat16} if on_cpu else {"bfloat16": jnp.bfloat16, "fp8": jnp.float8_e4m3fn}
    given = [jax.random.normal(jax.random.key(seed), (size, size), jnp.bfloat16) for seed in (0, 1)]

    @jax.jit
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        """Over the last dimension of both, as the fp8 units take them."""
        wide = [x.astype(jnp.bfloat16) for x in (a, b)]
        return lax.dot_general(*wide, (((1,), (1,)), ((), ())))

    reached = {}
    for name, dtype in formats.items():
        operands = [jax.device_put(x.astype(dtype), device) for x in given]
        product(*operands).block_until_ready()
        seconds = []
        for _ in range(8):  # of several each, so that starting them is not counted
            start = time.perf_counter()
            jax.block_until_ready([product(*operands) for _ in range(8)])
            seconds.append((time.perf_counter() - start) / 8)
        reached[name] = 2 * size**3 / min(seconds)
    memory = (device.memory_stats() or {}).get("bytes_limit") if not on_cpu else None
    say({"kind": device.device_kind, "backend": backend_of(device), "client": device.client.platform_version,
         "jax": jax.__version__, "memory_bytes": memory, "size": size, "flops_per_second": reached})  # fmt: skip


# --- runs -------------------------------------------------------------------------------------------------------------


class Run:
    """A trainer on one device with its state and its one batch; it begins with the given numbers, or with new ones."""

    def __init__(self, spec: RunSpec, device: Any, begin: Any | None = None) -> None:
        import jax

        from seatrial.train.data import make_batch
        from seatrial.train.data.synthetic import Synthetic
        from seatrial.train.mesh import make_mesh
        from seatrial.train.trainer import make_trainer

        self.trainer = make_trainer(spec, make_mesh(spec, [device]))
        source = Synthetic(spec.model.vocab_size, spec.batch.sequence_length, spec.batch.global_batch_size, spec.seed)
        self.batch = make_batch(source, 0, self.trainer.batch_shape, self.trainer.batch_shardings)
        self.state = self.trainer.init() if begin is None else jax.device_put(begin, self.trainer.state_shardings)
        step: Any = self.trainer.step  # which `jax.jit` has made
        self.compiled = step.lower(self.state, self.batch).compile()
        self.text: str = self.compiled.as_text()

    def step(self) -> float:
        """The loss of the next step, waited for."""
        self.state, numbers = self.compiled(self.state, self.batch)
        return float(numbers["loss"])

    @property
    def calls(self) -> Counter[str]:
        """The number of calls of each routine of NVIDIA's libraries in the program."""
        return Counter(re.findall(r'custom_call_target="(__cu[^"]+)"', self.text))


def compare(on_cpu: bool, formats: str) -> None:
    """A row for each format: how far the loss curves of both devices are apart, and how far they may be."""
    import jax
    import numpy as np

    there, cpu = jax.devices()[-1], jax.devices("cpu")[0]
    for name in (name for name in (ON_CPU if on_cpu else FORMATS) if re.search(formats, name)):
        precision, tolerance = FORMATS[name]
        spec = RunSpec(
            name="compared", dialect="native", model=COMPARED, steps=COMPARED_STEPS, precision=precision,
            data=Data(kind="synthetic"), batch=Batch(sequence_length=256, global_batch_size=4, micro_batch_size=2),
            optimizer=Optimizer(learning_rate=1e-3, warmup_steps=2), execution=Execution(remat="minimal_with_context"),
        )  # fmt: skip
        beside = Run(spec, cpu)
        run = Run(spec, there, jax.tree.map(np.asarray, beside.state))
        losses, expected = ([each.step() for _ in range(COMPARED_STEPS)] for each in (run, beside))
        apart = float(np.abs(np.subtract(losses, expected)).max())
        is_same = apart <= tolerance and losses[-1] < losses[0] - LEAST_FALL
        say({"format": name, "largest_difference": apart, "tolerance": tolerance, "same": is_same, "losses": losses,
             "losses_on_cpu": expected, "calls": run.calls})  # fmt: skip


def step(spec: RunSpec, steps: int, profile: bool, keep: Path | None) -> None:
    """Memory before and after, seconds and losses of each step behind the warm-up, milliseconds by kind of kernel."""
    import jax

    device = jax.devices()[-1]
    start = time.perf_counter()
    run = Run(spec, device)
    memory = run.compiled.memory_analysis()
    unaliased = memory.output_size_in_bytes - memory.alias_size_in_bytes
    compiled_seconds = time.perf_counter() - start
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / "step.hlo").write_text(run.text, encoding="utf-8")
    losses = [run.step() for _ in range(WARM_UP)]
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(run.step())
        seconds.append(time.perf_counter() - start)
    say({
        "seconds": seconds, "median_seconds": statistics.median(seconds), "losses": losses,
        "start_seconds": compiled_seconds,
        "compiled_bytes": memory.argument_size_in_bytes + unaliased + memory.temp_size_in_bytes,
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        "calls": run.calls, "by_kind": _by_kind(run, keep) if profile else None,
    })  # fmt: skip


def _by_kind(run: Run, keep: Path | None) -> dict[str, float]:
    """Seconds of one step that each kind of kernel takes, by JAX's profiler; none where it saw no kernel."""
    import jax

    found: dict[str, list[float]] = {}
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run.step()
        for file in Path(folder).rglob("*.xplane.pb"):
            for name, seconds in _kernels(jax.profiler.ProfileData.from_file(str(file))):
                found.setdefault(name, []).append(seconds)
    if keep:
        (keep / "kernels.json").write_text(json.dumps(found), encoding="utf-8")
    kinds: Counter[str] = Counter()
    for name, times in found.items():
        kinds[next((kind for kind, pattern in KINDS if pattern.search(name)), OTHERS)] += sum(times)
    return dict(kinds)


def _kernels(profile: Any) -> Iterator[tuple[str, float]]:
    """Kernels on the streams of accelerators; where there are none, XLA's operations on the threads of the CPU."""
    planes = list(profile.planes)
    on_device = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in on_device or planes:
        for line in plane.lines:
            if on_device and not line.name.startswith("Stream"):
                continue
            for event in line.events:
                if on_device or re.fullmatch(r"[a-z][\w.\-]*", event.name):
                    yield event.name, event.duration_ns / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("task", choices=("peak", "compare", "step"))
    parser.add_argument("spec", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--formats", default="")
    given = parser.parse_args()
    spec = from_dict(json.loads(given.spec.read_text(encoding="utf-8"))) if given.spec else None
    settle(cpu_devices=2 if given.cpu else None, configured=spec.execution.xla_flags if spec else {})
    settle_share()
    import jax  # late: the flags are read when it is loaded

    if given.cpu:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 2)
    if spec:
        step(spec, given.steps, given.profile, given.keep)
    elif given.task == "compare":
        compare(given.cpu, given.formats)
    else:
        peak(given.cpu)


if __name__ == "__main__":
    main()
