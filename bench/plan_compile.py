"""The time and memory of `seatrial plan --compile` for large models on many GPUs, on this machine.

    python bench/plan_compile.py

Needs the extra plan-gpu, and no GPU. Each command runs three times, each time with an empty cache; the time is that of
the whole command, the memory that of the process that compiles.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

ROOT = Path(__file__).parents[1]
RECIPE = "configs/native/recipe-llama2-70b-h100.yaml"
RUNS = 3
GIB = 2**30

# What is compiled → the overrides of the recipe, and the goals in seconds and GiB.
CASES: dict[str, tuple[list[str], float, float]] = {
    "llama2-70b on 64 H100, fsdp": ([], 30, 2),
    "llama3.1-70b on 512 H200, fsdp 64 × tensor 8": (
        ["model=llama3.1-70b", "topology.num_nodes=64", "topology.device=h200", "batch.sequence_length=8192",
         "batch.global_batch_size=256", "parallelism.within_node.fsdp=1", "parallelism.within_node.tensor=8",
         "parallelism.across_nodes.fsdp=64", "parallelism.sequence_parallel=true"], 30, 2,
    ),
    "llama3.1-405b on 2048 H200, fsdp 256 × tensor 8": (
        ["model=llama3.1-405b", "topology.num_nodes=256", "topology.device=h200", "batch.sequence_length=8192",
         "batch.global_batch_size=1024", "parallelism.within_node.fsdp=1", "parallelism.within_node.tensor=8",
         "parallelism.across_nodes.fsdp=256", "parallelism.sequence_parallel=true"], 60, 2,
    ),
    "llama3.1-405b on 2048 B200, data 8 × fsdp 256": (
        ["model=llama3.1-405b", "topology.num_nodes=256", "topology.device=b200", "batch.sequence_length=8192",
         "batch.global_batch_size=2048", "batch.micro_batch_size=1", "parallelism.across_nodes.fsdp=32",
         "parallelism.across_nodes.data=8"], 60, 2,
    ),
}  # fmt: skip


def _compiled(overrides: list[str]) -> dict[str, float]:
    """One run, with nothing in the cache: seconds, the compiling process's GiB, the step's GiB on a device."""
    argv = [sys.executable, "-m", "seatrial", "plan", RECIPE, *overrides, "--compile", "--format", "json"]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = subprocess.run(
            argv, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": folder}
        )
        seconds = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv[2:])} ended with {done.returncode}:\n{done.stderr}")
    step = json.loads(done.stdout)["compiled"]
    return {
        "seconds": seconds, "process_gib": step["process_bytes"] / GIB, "step_gib": step["total_bytes"] / GIB,
        "estimated_gib": step["estimated_bytes"] / GIB,
    }  # fmt: skip


def main() -> None:
    results = []
    print("  median    goal   process    goal     step  estimate")
    for shown, (overrides, most_seconds, most_gib) in CASES.items():
        runs = [_compiled(overrides) for _ in range(RUNS)]
        median, memory = statistics.median(r["seconds"] for r in runs), max(r["process_gib"] for r in runs)
        print(
            f"{median:6.1f} s {most_seconds:5.0f} s {memory:5.2f} GiB {most_gib:3.0f} GiB "
            f"{runs[0]['step_gib']:5.1f} GiB {runs[0]['estimated_gib']:5.1f} GiB  {shown}"
        )
        results.append({
            "step": shown, "overrides": overrides, "median_seconds": median, "goal_seconds": most_seconds,
            "process_gib": memory, "goal_gib": most_gib, "runs": runs,
        })  # fmt: skip
    print(f"written: {record.write('plan_compile', {'results': results}).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
