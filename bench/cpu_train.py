"""Training on the CPU: Seatrial's trainer beside transformers in PyTorch, eager and compiled.

    python bench/cpu_train.py [--rounds 3]

One model (4 layers of 512, 8 heads, feed-forward 1408, 32 000 words: 45.6 million parameters), 4 × 512 tokens a step,
AdamW with clipping, float32 master weights. Every trainer is started as its user would start it: ours by the launcher
(which sets glibc's malloc), PyTorch's by `python`. Each start is a process of its own; in a round every trainer runs
once, so that whatever else the machine does falls on all alike. A trainer's time is the median of its steps after
warm-up; ratios are taken within a round, and their median over the rounds is the result. The share of the peak is the
model's FLOPs (causal convention) over those of a 2048³ product that is timed in every round.

PyTorch multiplies bfloat16 word by word on a CPU without instructions for it, and a step takes minutes. A trainer that
has not done its steps in LIMIT_SECONDS is therefore stopped, and not started again in later rounds: the median of the
steps that it did is its time, or, without one, the time that it had, which is then less than its step takes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import record

from seatrial import events, flops
from seatrial.engines import Ground, Placement, native
from seatrial.spec import Batch, Data, Execution, ModelSpec, Optimizer, Precision, RunSpec

PROGRAMS = Path(__file__).parent / "programs"
STEPS, WARM_UP = 9, 3
MODEL = ModelSpec(
    name="bench", vocab_size=32_000, hidden_dim=512, num_layers=4, num_heads=8, num_kv_heads=8, head_dim=64,
    ffn_dim=1408,
)  # fmt: skip
SEQUENCES, LENGTH = 4, 512
GOALS = {  # (slower, ours): the ratio of their step times
    ("transformers eager bfloat16", "seatrial bfloat16"): 1.7,
    ("transformers eager float32", "seatrial float32"): 3.0,
    ("transformers compiled bfloat16", "seatrial bfloat16"): 1.0,
    ("transformers compiled float32", "seatrial float32"): 1.0,
}
LIMIT_SECONDS = 150
PLACE = Placement(cpu_devices=1)
Run = dict[str, list[float]]  # "seconds" and "losses" of every step


def seatrial(dtype: Any) -> Run:
    spec = RunSpec(
        name="bench", dialect="native", model=MODEL, steps=STEPS,
        batch=Batch(sequence_length=LENGTH, global_batch_size=SEQUENCES, micro_batch_size=SEQUENCES),
        precision=Precision(compute_dtype=dtype),
        optimizer=Optimizer(learning_rate=3e-4, beta1=0.9, beta2=0.95, weight_decay=0.1, clip_norm=1.0),
        data=Data(kind="synthetic"),
        execution=Execution(remat="none", scan_layers=False),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        [command] = native.commands(spec, Ground(hosts=["here"], placements=[PLACE], run_dir=run_dir)).each
        for name, content in command.files.items():
            (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
            (run_dir / name).write_text(content, encoding="utf-8")
        variables = os.environ | {name: str(value) for name, value in command.environment.items()}
        subprocess.run(command.argv, env=variables, check=True, stdout=subprocess.DEVNULL)
        steps = [event for event in events.read(run_dir / "events-0.jsonl") if isinstance(event, events.Step)]
    return {"seconds": [step.seconds or 0.0 for step in steps], "losses": [step.loss or 0.0 for step in steps]}


def of_program(name: str, *arguments: str, variables: Mapping[str, str] = os.environ) -> list[Any]:
    """The JSON objects that a program prints, one a line; those that it had printed when its time was over."""
    argv = (sys.executable, str(PROGRAMS / name), *arguments)
    try:
        printed = subprocess.run(argv, check=True, env=variables, stdout=subprocess.PIPE, timeout=LIMIT_SECONDS).stdout
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout or b""
    return [json.loads(line) for line in printed.splitlines()]


def transformers(*arguments: str) -> Run:
    shape = json.dumps(dataclasses.asdict(MODEL) | {"batch": SEQUENCES, "sequence_length": LENGTH})
    steps = of_program("transformers_train.py", shape, "--steps", str(STEPS), *arguments)
    return {"seconds": [step["seconds"] for step in steps], "losses": [step["loss"] for step in steps]}


TRAINERS: dict[str, Callable[[], Run]] = {
    "seatrial bfloat16": lambda: seatrial("bfloat16"),
    "seatrial float32": lambda: seatrial("float32"),
    "transformers eager bfloat16": lambda: transformers("--dtype", "bfloat16"),
    "transformers eager float32": lambda: transformers("--dtype", "float32"),
    "transformers compiled bfloat16": lambda: transformers("--dtype", "bfloat16", "--compile"),
    "transformers compiled float32": lambda: transformers("--dtype", "float32", "--compile"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    runs: dict[str, list[Run]] = {name: [] for name in TRAINERS}
    peaks: list[dict[str, float]] = []
    variables = {"XLA_FLAGS": " ".join(f"--{name}={value}" for name, value in PLACE.xla_flags.items())}
    for number in range(rounds):
        peaks += of_program("matmul_peak.py", variables=os.environ | variables)
        for name, train in TRAINERS.items():
            is_slow = number and len(runs[name][0]["seconds"]) < STEPS
            runs[name].append(runs[name][0] if is_slow else train())
            print(f"round {number + 1} of {rounds}: {median(runs[name][-1]):6.3f} s  {name}", flush=True)
    tokens = SEQUENCES * LENGTH
    gflops = tokens * flops.flops_per_token(MODEL, LENGTH) / 1e9
    rows = []
    print("\nmedian step  tokens/s  share of peak  loss")
    for name, done in runs.items():
        seconds = statistics.median(median(run) for run in done)
        dtype = name.rpartition(" ")[2]
        share = statistics.median(gflops / median(run) / peak[dtype] for run, peak in zip(done, peaks, strict=True))
        losses = " → ".join(f"{loss:.3f}" for loss in done[0]["losses"][:: STEPS - 1]) or "no step in its time"
        print(f"{seconds:9.3f} s  {tokens / seconds:8,.0f}  {share:13.2f}  {losses}  {name}")
        rows.append(
            {"trainer": name, "median_step_seconds": seconds, "tokens_per_second": tokens / seconds,
             "share_of_matmul_peak": share, "runs": done}
        )  # fmt: skip
    ratios = []
    print()
    for (slower, ours), goal in GOALS.items():
        ratio = statistics.median(median(a) / median(b) for a, b in zip(runs[slower], runs[ours], strict=True))
        print(f"{ratio:5.2f} × (goal {goal})  {ours} against {slower}")
        ratios.append({"ours": ours, "slower": slower, "ratio": ratio, "goal": goal})
    measured = {"rounds": rounds, "peak_gflops": peaks, "trainers": rows, "ratios": ratios}
    print("written:", record.write("cpu_train", measured).name)


def median(run: Run) -> float:
    """Seconds of a step once warm; where a trainer did not come that far, of any, or all the time that it had."""
    return statistics.median(run["seconds"][WARM_UP:] or run["seconds"] or [LIMIT_SECONDS])


if __name__ == "__main__":
    main()
