"""Training on a GPU: the same numbers as on the CPU, in bfloat16 and in fp8, and how long a step takes.

    python bench/gpu_smoke.py [--cpu] [--rounds 5]

A small Llama (heads of 128, as cuDNN's attention likes them) is trained for some steps in float32, bfloat16 and fp8, on
the GPU and, from the same parameters and batches, on the CPU; the loss curves must agree within a tolerance for each
format. Then a larger one is timed on the GPU, the formats taking turns, every step waited for. Installs nothing: needs
jax with CUDA, numpy, psutil and pyarrow, and runs from a checkout. Without a GPU it says so and exits 2; `--cpu` puts a
second CPU device in the GPU's place and leaves most away, which proves the script and nothing else.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
NEEDED = ("jax", "numpy", "psutil", "pyarrow")
if MISSING := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
    sys.exit(f"gpu_smoke needs {', '.join(MISSING)}: pip install 'seatrial[gpu]', or what is missing alone")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Only now: what is missing is told in one line, and a checkout that is not installed is found.
import jax  # noqa: E402
import numpy as np  # noqa: E402
import record  # noqa: E402

from seatrial.estimate import flops  # noqa: E402
from seatrial.spec import Batch, Data, Execution, ModelSpec, Optimizer, Precision, RunSpec  # noqa: E402
from seatrial.train.data import make_batch  # noqa: E402
from seatrial.train.data.synthetic import Synthetic  # noqa: E402
from seatrial.train.mesh import backend_of, make_mesh  # noqa: E402
from seatrial.train.trainer import Trainer, make_trainer  # noqa: E402

STEPS = 10
Formats = dict[str, tuple[Precision, float]]
FORMATS: Formats = {  # → how far the loss on the GPU may be from that on the CPU
    "float32": (Precision(compute_dtype="float32"), 2e-3),  # products may be in TF32
    "bfloat16": (Precision(), 1e-2),
    "fp8 current": (Precision(quantization="te_fp8_currentscaling"), 2e-2),
    "fp8 delayed": (Precision(quantization="fp8"), 2e-2),
}
SMALL = ModelSpec(
    name="small", vocab_size=1024, hidden_dim=256, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=128, ffn_dim=512
)  # fmt: skip
LARGE = ModelSpec(
    name="llama3.1-8b cut to 4 layers", vocab_size=32_000, hidden_dim=4096, num_layers=4, num_heads=32, num_kv_heads=8,
    head_dim=128, ffn_dim=14_336, rope_theta=500_000.0,
)  # fmt: skip


def spec_of(model: ModelSpec, precision: Precision, sequences: int, length: int) -> RunSpec:
    return RunSpec(
        name="gpu_smoke", dialect="native", model=model, steps=STEPS, precision=precision, data=Data(kind="synthetic"),
        batch=Batch(sequence_length=length, global_batch_size=sequences, micro_batch_size=sequences),
        optimizer=Optimizer(learning_rate=1e-3, warmup_steps=2),
        execution=Execution(remat="none" if model is SMALL else "minimal_flash"),
    )  # fmt: skip


class Run:
    """A trainer on one device with its state and its one batch; it begins with the given numbers, or with new ones."""

    def __init__(self, spec: RunSpec, device: jax.Device, begin: Any | None = None) -> None:
        self.trainer: Trainer = make_trainer(spec, make_mesh(spec, [device]))
        source = Synthetic(spec.model.vocab_size, spec.batch.sequence_length, spec.batch.global_batch_size, spec.seed)
        self.batch = make_batch(source, 0, self.trainer.batch_shape, self.trainer.batch_shardings)
        self.state = self.trainer.init() if begin is None else jax.device_put(begin, self.trainer.state_shardings)
        compiled = self.trainer.step.lower(self.state, self.batch).compile()
        self.calls = Counter(re.findall(r'custom_call_target="(__cu[^"]+)"', compiled.as_text()))
        self._step = compiled

    def step(self) -> float:
        """The loss of the next step, waited for."""
        self.state, numbers = self._step(self.state, self.batch)
        return float(numbers["loss"])


def compare(gpu: jax.Device, cpu: jax.Device, formats: Formats) -> list[dict[str, Any]]:
    """Loss curves of both devices from the same beginning, for every format."""
    rows = []
    for name, (precision, tolerance) in formats.items():
        spec = spec_of(SMALL, precision, 4, 256)
        on_cpu = Run(spec, cpu)
        on_gpu = Run(spec, gpu, jax.tree.map(np.asarray, on_cpu.state))
        curves = {device: [run.step() for _ in range(STEPS)] for device, run in ((cpu, on_cpu), (gpu, on_gpu))}
        apart = float(np.abs(np.subtract(curves[cpu], curves[gpu])).max())
        sound = apart <= tolerance and curves[gpu][-1] < curves[gpu][0] - 0.1
        print(f"{'same' if sound else 'DIFFERENT':9}  {name:11}  {apart:.2e} of at most {tolerance:.0e}  "
              f"loss {curves[gpu][0]:.3f} → {curves[gpu][-1]:.3f}", flush=True)  # fmt: skip
        rows.append({"format": name, "largest_difference": apart, "tolerance": tolerance, "same": sound,
                     "losses": curves[gpu], "losses_on_cpu": curves[cpu], "calls": on_gpu.calls})  # fmt: skip
    return rows


def measure(
    gpu: jax.Device, formats: Formats, rounds: int, model: ModelSpec, sequences: int, length: int
) -> list[dict[str, Any]]:
    """Seconds of every step, the formats taking turns; the first of each turn is not counted."""
    runs = {
        name: Run(spec_of(model, precision, sequences, length), gpu)
        for name, (precision, _) in formats.items()
        if precision.compute_dtype == "bfloat16"
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run.step()
    for _ in range(rounds):
        for name, run in runs.items():
            run.step()
            for _ in range(3):
                start = time.perf_counter()
                run.step()
                seconds[name].append(time.perf_counter() - start)
    tokens = sequences * length
    work = tokens * flops.flops_per_token(model, length)
    rows = []
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{median:9.4f} s  {tokens / median:10,.0f} tokens/s  {work / median / 1e12:8.1f} TFLOP/s  {name}")
        rows.append({
            "format": name, "median_step_seconds": median, "tokens_per_second": tokens / median,
            "tflops_per_second": work / median / 1e12, "step_seconds": times, "calls": runs[name].calls,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="prove that this script works, without a GPU")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.cpu:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 2)
    gpu = jax.devices()[-1]
    if not arguments.cpu and backend_of(gpu) not in ("cuda", "rocm"):
        print(f"there is no GPU here, only {gpu.device_kind}; --cpu proves that the script works", file=sys.stderr)
        sys.exit(2)
    cpu = jax.devices("cpu")[0]
    print(f"{gpu.device_kind} ({backend_of(gpu)}) beside the CPU, jax {jax.__version__}", flush=True)
    formats = {name: FORMATS[name] for name in (("bfloat16", "fp8 current") if arguments.cpu else FORMATS)}
    compared = compare(gpu, cpu, formats)
    large = (SMALL, 2, 256) if arguments.cpu else (LARGE, 4, 4096)
    measured = measure(gpu, formats, arguments.rounds, *large)
    if not arguments.cpu:
        path = record.write("gpu_smoke", {
            "command": "python bench/gpu_smoke.py", "device": gpu.device_kind, "backend": backend_of(gpu),
            "client": gpu.client.platform_version, "compared": compared,
            "timed": {"model": large[0].name, "sequences": large[1], "length": large[2], "rows": measured},
        })  # fmt: skip
        print(f"written: {path.name}")
    sys.exit(0 if all(row["same"] for row in compared) else 1)


if __name__ == "__main__":
    main()
