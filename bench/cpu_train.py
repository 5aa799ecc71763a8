"""Training on the CPU: Seatrial's trainer beside transformers in PyTorch, eager and compiled.

    python bench/cpu_train.py [--rounds 2] [--short 16]        (four to eleven minutes on two cores)

One model (4 layers of 512, 8 heads, feed-forward 1408, 32 000 words: 45.6 million parameters), 4 × 512 tokens a step,
AdamW with clipping, float32 master weights. Every trainer is started as its user would start it: ours by the launcher
(which sets glibc's malloc), PyTorch's by `python`. Each start is a process of its own; in a round every trainer runs
once, so that whatever else the machine does falls on all alike. A trainer's time is the median of its steps after
warm-up, which is five steps: until then, a virtual machine may still have to be given the memory by its host. Ratios
are taken within a round, and their median over the rounds is the result. The share of the peak is the model's FLOPs
(causal convention) over those of a 2048³ product that is timed in every round.

On a CPU without instructions for bfloat16, PyTorch multiplies it word by word, and its backward pass on one core: a
step of 4 × 512 tokens takes four minutes, in proportion to the tokens. There, bfloat16 is compared in the first round
alone, and with sequences of `--short` tokens, for ours as well. That flatters PyTorch: of so short a step, most of ours
is AdamW, which tokens do not change. `--short 512` shortens nothing and takes three quarters of an hour.

The ratios change with the CPU, and with the products for it that each jax brings, so there is a result of each CPU and
jax that was tried.

What was not measured is null, with the reason: a trainer of PyTorch that takes too long is stopped.
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

import record

from seatrial import events
from seatrial.engines import Ground, Placement, native
from seatrial.estimate import flops
from seatrial.spec import Batch, Data, Execution, ModelSpec, Optimizer, Precision, RunSpec

PROGRAMS = Path(__file__).parent / "programs"
MODEL = ModelSpec(
    name="bench", vocab_size=32_000, hidden_dim=512, num_layers=4, num_heads=8, num_kv_heads=8, head_dim=64,
    ffn_dim=1408,
)  # fmt: skip
SEQUENCES, LENGTH = 4, 512
FLAGS_OF_BFLOAT16 = {"avx512bw", "avx_ne_convert", "bf16"}  # one of them lets PyTorch use a library for it
GOALS = {  # (slower, ours): the ratio of their step times
    ("transformers eager bfloat16", "seatrial bfloat16"): 1.7,
    # What each computes in where its user says nothing of it: the Trainer of transformers in float32, ours in bfloat16.
    ("transformers eager float32", "seatrial bfloat16"): 3.0,
    ("transformers eager float32", "seatrial float32"): 1.0,
    ("transformers compiled bfloat16", "seatrial bfloat16"): 1.0,
    ("transformers compiled float32", "seatrial float32"): 1.0,
}
NOT_MEASURED = "it was stopped before it had done a step behind its warm-up"
PLACE = Placement(cpu_devices=1)
Run = dict[str, list[float]]  # "seconds" and "losses" of every step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """The training of one start: steps of SEQUENCES × length tokens, of which the first `warm_up` are not counted."""

    length: int
    steps: int
    warm_up: int
    limit_seconds: float  # for all of it, importing and compiling included

    def seconds(self, run: Run) -> float | None:
        """Of a step once warm; None where the trainer did not come that far."""
        return statistics.median(warm) if (warm := run["seconds"][self.warm_up :]) else None


def seatrial(work: Work, dtype: Any) -> Run:
    spec = RunSpec(
        name="bench", dialect="native", model=MODEL, steps=work.steps,
        batch=Batch(sequence_length=work.length, global_batch_size=SEQUENCES, micro_batch_size=SEQUENCES),
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


def of_program(name: str, *arguments: str, limit_seconds: float) -> list[Any]:
    """The JSON objects that a program prints, one a line; those that it had printed when its time was over."""
    argv = (sys.executable, str(PROGRAMS / name), *arguments)
    try:
        printed = subprocess.run(argv, check=True, stdout=subprocess.PIPE, timeout=limit_seconds).stdout
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout or b""
    return [json.loads(line) for line in printed.splitlines()]


def transformers(work: Work, *arguments: str) -> Run:
    shape = json.dumps(dataclasses.asdict(MODEL) | {"batch": SEQUENCES, "sequence_length": work.length})
    steps = of_program(
        "transformers_train.py", shape, "--steps", str(work.steps), *arguments, limit_seconds=work.limit_seconds
    )
    return {"seconds": [step["seconds"] for step in steps], "losses": [step["loss"] for step in steps]}


TRAINERS: dict[str, Callable[[Work], Run]] = {
    "seatrial bfloat16": lambda work: seatrial(work, "bfloat16"),
    "seatrial float32": lambda work: seatrial(work, "float32"),
    "transformers eager bfloat16": lambda work: transformers(work, "--dtype", "bfloat16"),
    "transformers eager float32": lambda work: transformers(work, "--dtype", "float32"),
    "transformers compiled bfloat16": lambda work: transformers(work, "--dtype", "bfloat16", "--compile"),
    "transformers compiled float32": lambda work: transformers(work, "--dtype", "float32", "--compile"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--short", type=int, default=16)
    given = parser.parse_args()
    whole = Work(length=LENGTH, steps=10, warm_up=5, limit_seconds=180)
    short = Work(length=given.short, steps=10, warm_up=5, limit_seconds=180 * max(1, given.short / 16))
    has_bfloat16 = not FLAGS_OF_BFLOAT16.isdisjoint(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    slow = [] if has_bfloat16 else [name for name in TRAINERS if name.endswith("bfloat16")]
    todo = [(name, whole) for name in TRAINERS if name not in slow or name.startswith("seatrial")]
    once = [(name, short) for name in slow]
    runs: dict[tuple[str, Work], list[Run]] = {case: [] for case in (*todo, *once)}
    peaks: list[dict[str, float]] = []
    for number in range(given.rounds):
        peaks += of_program("matmul_peak.py", limit_seconds=60)
        for name, work in todo if number else runs:
            runs[name, work].append(run := TRAINERS[name](work))
            print(
                f"round {number + 1} of {given.rounds}: {shown(work.seconds(run))} s  {title(name, work)}", flush=True
            )
    rows = [row(name, work, done, peaks) for (name, work), done in runs.items()]
    print("\nmedian step  tokens/s  share of peak  loss")
    for each, ((name, work), done) in zip(rows, runs.items(), strict=True):
        losses = " → ".join(f"{loss:.3f}" for loss in done[0]["losses"][:: work.steps - 1])
        tokens_per_second, share = each["tokens_per_second"], each["share_of_matmul_peak"]
        print(
            f"{shown(each['median_step_seconds'], 9)} s  {shown(tokens_per_second, 8, 0)}  {shown(share, 13, 2)}  "
            f"{losses}  {title(name, work)}  {each.get('why_null', '')}"
        )
    print()
    ratios = [
        ratio(slower, ours, work, runs) for slower, ours in GOALS for work in (whole, short) if (slower, work) in runs
    ]
    for each in ratios:
        what = f"{each['ours']} against {each['slower']}, sequences of {each['sequence_length']}"
        print(f"{shown(each['ratio'], 5, 2)} × (goal {each['goal']})  {what}  {each.get('why_null', '')}")
    measured = {"rounds": given.rounds, "peak_gflops": peaks, "trainers": rows, "ratios": ratios}
    print("written:", record.write(f"cpu_train-{record.cpu_name()}-jax-{version('jax')}", measured).name)


def row(name: str, work: Work, done: list[Run], peaks: list[dict[str, float]]) -> dict[str, Any]:
    """The results of a trainer over all rounds."""
    tokens = SEQUENCES * work.length
    gflops = tokens * flops.flops_per_token(MODEL, work.length) / 1e9
    peak = [each[name.rpartition(" ")[2]] for each in peaks]
    times = [(seconds, at) for run, at in zip(done, peak, strict=False) if (seconds := work.seconds(run)) is not None]
    found = statistics.median(seconds for seconds, _ in times) if times else None
    return {
        "trainer": name,
        **dataclasses.asdict(work),
        "median_step_seconds": found,
        "tokens_per_second": tokens / found if found else None,
        "share_of_matmul_peak": statistics.median(gflops / seconds / at for seconds, at in times) if times else None,
        **({} if times else {"why_null": NOT_MEASURED}),
        "runs": done,
    }


def ratio(slower: str, ours: str, work: Work, runs: Mapping[tuple[str, Work], list[Run]]) -> dict[str, Any]:
    """Of two trainers' step times, within each round."""
    pairs = zip(runs[slower, work], runs[ours, work], strict=True)
    each = [a / b for one, other in pairs if (a := work.seconds(one)) and (b := work.seconds(other))]
    found = {"ratio": statistics.median(each)} if each else {"ratio": None, "why_null": NOT_MEASURED}
    goal = GOALS[slower, ours]
    return {"ours": ours, "slower": slower, "sequence_length": work.length, **found, "goal": goal}


def title(name: str, work: Work) -> str:
    return name if work.length == LENGTH else f"{name}, sequences of {work.length}"


def shown(value: float | None, width: int = 6, decimals: int = 3) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width},.{decimals}f}"


if __name__ == "__main__":
    main()
