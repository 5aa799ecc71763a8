"""The model of time on this CPU: predicted against measured steps of configurations that calibrating has not seen.

    python bench/time_model.py [--rounds 3] [--only 4] [--keep]     (about twenty minutes on two quiet cores)

It calibrates first (`seatrial calibrate --cpu`; with --keep, the profile of the last time is used). Then the steps of
`CASES` are measured, each in a process of its own that is started as the launcher starts a trainer, in rounds that go
through all of them, so that whatever else the machine does falls on all alike. A step's time is the mean of the faster
half of its steps after warm-up, and the median over the rounds. A prediction is right within 10 %; the goal is nine of
ten.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

from seatrial.commands.calibrate import calibrate
from seatrial.commands.device_profile import cpu_name, measured
from seatrial.engines.native import CPU_MALLOC, TUNABLES
from seatrial.estimate.time_model import predict
from seatrial.estimate.time_profile import as_dict
from seatrial.spec import Batch, Execution, MeshShape, ModelSpec, Parallelism, Precision, RunSpec, Topology, to_dict

GOAL, WITHIN = 0.9, 0.10
PROGRAM = Path(__file__).parent / "programs" / "step_seconds.py"
# Layers, hidden, feed-forward and words of a model with heads of 64.
MODELS = {"wide": (2, 1024, 2816, 8192), "usual": (4, 512, 1408, 16_384), "narrow": (8, 256, 704, 4096),
          "words": (2, 384, 1024, 32_768)}  # fmt: skip
# Model, length, micro-batch, accumulation, remat, format, mesh.
Case = tuple[str, int, int, int, str, Any, dict[str, int]]
CASES: tuple[Case, ...] = (
    ("wide", 256, 2, 1, "none", "bfloat16", {}),
    ("wide", 512, 1, 1, "full", "bfloat16", {}),
    ("wide", 256, 2, 1, "none", "float32", {}),
    ("usual", 512, 2, 1, "none", "bfloat16", {}),
    ("usual", 512, 2, 1, "minimal_with_context", "bfloat16", {}),
    ("usual", 512, 2, 1, "save_qkv_proj", "bfloat16", {}),
    ("usual", 256, 2, 4, "none", "bfloat16", {}),
    ("usual", 1024, 1, 1, "none", "bfloat16", {}),
    ("usual", 512, 2, 1, "none", "float32", {}),
    ("usual", 512, 2, 1, "full", "float32", {}),
    ("usual", 128, 8, 2, "none", "float32", {}),
    ("narrow", 256, 8, 1, "none", "bfloat16", {}),
    ("narrow", 512, 4, 1, "full", "bfloat16", {}),
    ("narrow", 256, 8, 1, "none", "float32", {}),
    ("narrow", 1024, 2, 1, "none", "float32", {}),
    ("words", 256, 4, 1, "none", "bfloat16", {}),
    ("words", 256, 4, 1, "none", "float32", {}),
    ("words", 256, 2, 2, "full", "bfloat16", {}),
    ("usual", 256, 2, 1, "none", "bfloat16", {"data": 2}),
    ("usual", 256, 1, 1, "none", "bfloat16", {"fsdp": 4}),
    ("usual", 256, 2, 1, "none", "bfloat16", {"tensor": 2}),
    ("usual", 256, 2, 1, "full", "float32", {"fsdp": 2}),
    ("narrow", 256, 2, 1, "none", "bfloat16", {"data": 4}),
    ("narrow", 256, 2, 1, "none", "float32", {"fsdp": 2, "tensor": 2}),
    ("narrow", 256, 2, 4, "none", "bfloat16", {"pipeline": 2}),
    ("wide", 256, 1, 1, "none", "float32", {"data": 2}),
    ("words", 256, 1, 2, "none", "bfloat16", {"fsdp": 4}),
    ("words", 512, 1, 1, "none", "bfloat16", {"context": 2}),
)


def spec_of(case: Case) -> RunSpec:
    name, length, micro, accumulate, remat, dtype, mesh = case
    layers, hidden, ffn, words = MODELS[name]
    shape = MeshShape(**mesh)
    model = ModelSpec(
        name=name, vocab_size=words, hidden_dim=hidden, num_layers=layers, num_heads=hidden // 64,
        num_kv_heads=hidden // 64, head_dim=64, ffn_dim=ffn,
    )  # fmt: skip
    replicas = shape.data * shape.fsdp
    return RunSpec(
        name="bench", dialect="native", model=model, steps=10,
        batch=Batch(sequence_length=length, micro_batch_size=micro, global_batch_size=micro * accumulate * replicas),
        topology=Topology(devices_per_node=shape.product), parallelism=Parallelism(within_node=shape),
        precision=Precision(compute_dtype=dtype), execution=Execution(remat=remat),
    )  # fmt: skip


def measure(spec: RunSpec) -> float:
    """Seconds of a step, in a process of its own."""
    variables = {**os.environ, "JAX_PLATFORMS": "cpu"}
    variables.setdefault(TUNABLES, ":".join(f"{name}={value}" for name, value in CPU_MALLOC.items()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(to_dict(spec)), encoding="utf-8")
        argv = [sys.executable, str(PROGRAM), str(path)]
        done = subprocess.run(argv, env=variables, check=True, stdout=subprocess.PIPE)
    return float(json.loads(done.stdout)["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=int, default=len(CASES), help="so many of the cases, evenly chosen")
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    profile = measured(cpu_name()) if given.keep else None
    if profile is None:
        profile, _ = calibrate(cpu=True, say=print)
    cases = CASES[:: max(1, len(CASES) // given.only)][: given.only]
    times: list[list[float]] = [[] for _ in cases]
    for number in range(given.rounds):
        for case, found in zip(cases, times, strict=True):
            found.append(measure(spec_of(case)))
            print(f"round {number + 1} of {given.rounds}: {found[-1]:.3f} s  {case}", flush=True)
    rows = []
    print("\nmeasured  predicted  off by")
    for case, found in zip(cases, times, strict=True):
        spec = spec_of(case)
        predicted = predict(spec, "native", profile)
        assert predicted is not None
        seconds = statistics.median(found)
        off = predicted.step_seconds / seconds - 1
        print(f"{seconds:7.3f} s {predicted.step_seconds:8.3f} s {off:+7.1%}  {case}")
        rows.append({"case": list(case), "seconds": found, "median_seconds": seconds,
                     "predicted_seconds": predicted.step_seconds, "off_by": off,
                     "predicted_by_part": dict(predicted.seconds)})  # fmt: skip
    inside = sum(abs(row["off_by"]) <= WITHIN for row in rows) / len(rows)
    print(f"\n{inside:.0%} of {len(rows)} within {WITHIN:.0%} (goal {GOAL:.0%})")
    if len(cases) < len(CASES):
        print("not written: not all cases were measured")
        return
    facts = {"rounds": given.rounds, "within_10_percent": inside, "goal": GOAL, "profile": as_dict(profile)}
    print("written:", record.write(f"time_model-{record.cpu_name()}", {**facts, "cases": rows}).name)


if __name__ == "__main__":
    main()
